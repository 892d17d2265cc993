//! The Debian packages that the lab is made of.

pub const PACKAGES: &[&str] = &[
    "busybox-static",
    "e2fsprogs",
    "gcc",
    "iproute2",
    "kmod",
    "libc6-dev",
    "netbase",
    "nfs-common",
    "nftables",
    "qemu-system-x86",
    "rpcbind",
    "tshark",
];
