#!/usr/bin/env bash
# Makes the disk of a virtual machine for make test-vm: Debian 13 with systemd, Docker, an NFS server, an iSCSI target at two addresses, multipathd, LVM, btrfs and SSH, as
# an administrator has it before anything of ours is installed.
#
#   hack/vm-image.sh DIR    writes DIR/disk.img, DIR/vmlinuz, DIR/initrd.img and DIR/key, the machine's SSH key
#
# Nothing is done if DIR has them, made by this version of the script.
set -euo pipefail
cd "$(dirname "$0")/.."
to=$(realpath -m "$1")
release=trixie
version=$(sha256sum "$0" | cut -c1-16)
[ "$(cat "$to/version" 2>/dev/null)" != "$version" ] || exit 0

packages=(systemd systemd-sysv libpam-systemd dbus udev polkitd linux-image-amd64 initramfs-tools zstd kmod openssh-server
	docker.io docker-cli iptables nftables iproute2 procps ca-certificates apparmor nfs-kernel-server nfs-common open-iscsi tgt multipath-tools lvm2 btrfs-progs e2fsprogs less)
mirror=$(apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' | awk '$3 == "main" {print $1; exit}')
[ -n "$mirror" ] || { echo "vm-image: apt has no source of Debian: add one, then run apt-get update" >&2; exit 1; }
mkdir -p "$to/debs"
rm -f "$to/version"
root=$(mktemp -d "$to/root.XXXXXX")
trap 'umount -q "$root"/proc "$root"/sys "$root"/dev 2>/dev/null || true; rm -rf --one-file-system "$root"' EXIT

include=$(IFS=,; echo "${packages[*]}")
debootstrap --variant=minbase --cache-dir="$to/debs" --include="$include" "$release" "$root" "$mirror"

# A small initrd boots sooner on an emulated processor.
printf 'MODULES=list\nCOMPRESS=zstd\nRESUME=none\n' >"$root/etc/initramfs-tools/conf.d/small"
printf '%s\n' virtio_pci virtio_blk virtio_net ext4 >"$root/etc/initramfs-tools/modules"
chroot "$root" update-initramfs -u -k all

echo vm >"$root/etc/hostname"
printf '127.0.0.1 localhost\n' >"$root/etc/hosts"
printf '/dev/vda / ext4 defaults 0 1\n' >"$root/etc/fstab"
rm -f "$root/etc/resolv.conf" # this machine's
echo "nameserver 172.30.0.10" >"$root/etc/resolv.conf"
cat >"$root/etc/systemd/network/10-lab.network" <<'NETWORK'
[Match]
Type=ether
Driver=virtio_net
[Network]
Address=172.30.0.30/24
Address=172.30.0.31/24
LinkLocalAddressing=no
IPv6AcceptRA=no
NETWORK
mkdir -p "$root/etc/docker" "$root/root/.ssh" "$root/srv/share" "$root/var/log/journal"
printf '{"live-restore": true}\n' >"$root/etc/docker/daemon.json" # docs/guides/linux.md
printf '/srv/share *(rw,no_root_squash,no_subtree_check)\n' >"$root/etc/exports"
printf 'UseDNS no\n' >"$root/etc/ssh/sshd_config.d/lab.conf"
rm -f "$to/key" "$to/key.pub"
ssh-keygen -q -t ed25519 -N '' -C vm -f "$to/key"
cp "$to/key.pub" "$root/root/.ssh/authorized_keys"
chroot "$root" ssh-keygen -A >/dev/null
chroot "$root" systemctl enable systemd-networkd ssh >/dev/null
# What nothing here needs costs seconds of an emulated processor at each boot.
chroot "$root" systemctl disable apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_reap.service >/dev/null 2>&1 || true
chroot "$root" systemctl mask systemd-networkd-wait-online.service serial-getty@ttyS0.service >/dev/null
cp "$root"/boot/vmlinuz-* "$to/vmlinuz"
cp "$root"/boot/initrd.img-* "$to/initrd.img"
rm -rf "$root"/var/cache/apt/* "$root"/usr/share/doc "$root"/usr/share/man
truncate -s 8G "$to/disk.img"
mke2fs -q -F -t ext4 -d "$root" "$to/disk.img"
echo "$version" >"$to/version"
