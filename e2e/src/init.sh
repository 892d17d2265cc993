#!/bin/busybox sh
# The first process of a guest: brings up devices, network and the NFS client's own daemons in the
# order of a distribution's boot, then keeps the agent running for as long as the machine lives.
export PATH=/bin:/sbin:/usr/bin:/usr/sbin HOME=/
/bin/busybox mkdir -p /proc /sys /dev /run /tmp /mnt /root /var/lib/nfs
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mount -t tmpfs tmpfs /run
mount -t tmpfs -o size=75% tmpfs /tmp
chmod 1777 /tmp
for module in $(cat /modules/order); do
    insmod "/modules/$module" || echo "init: cannot load $module"
done

for word in $(cat /proc/cmdline); do
    case $word in
    lab.name=*) name=${word#*=} ;;
    lab.ip4=*) ip4=${word#*=} ;;
    lab.ip6=*) ip6=${word#*=} ;;
    lab.first=*) first=${word#*=} ;;
    esac
done
hostname "$name"
echo 0 > /proc/sys/net/ipv6/conf/default/accept_dad
ip link set lo up
echo 0 > /proc/sys/net/ipv6/conf/eth0/accept_dad
ip link set eth0 up
ip addr add "$ip4/24" dev eth0
ip -6 addr add "$ip6/64" dev eth0

mount -t ext4 /dev/vda /var/lib/nfs || echo "init: no disk for /var/lib/nfs"
mkdir -p /var/lib/nfs/sm /var/lib/nfs/sm.bak /run/rpcbind /run/sendsigs.omit.d
chown -R statd /var/lib/nfs
rpcbind -w
# Distributions differ in what comes first.
[ "$first" = notify ] && sm-notify -f
rpc.statd --no-notify
echo "mark statd" > /dev/vport0p1
[ "$first" = notify ] || sm-notify -f
# A crash a second later shall find the new state, as one on any other day would.
sync

echo "init: up"
while :; do
    lockkeeper-guest agent /dev/vport0p1
    sleep 1
done
