//! The Debian packages that the lab is made of.

pub const PACKAGES: &[&str] = &[
    "busybox-static",
    "e2fsprogs",
    "gcc",
    "iproute2",
    "iputils-arping",
    "kmod",
    "libc6-dev",
    "netbase",
    "nfs-common",
    "nftables",
    "postgresql",
    "qemu-system-x86",
    "rpcbind",
    "tshark",
    "util-linux",
    "xz-utils",
];
