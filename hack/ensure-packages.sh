#!/usr/bin/env bash
# Installs the missing Debian packages for some purposes: ensure-packages.sh cluster|cni|crun|docs|engine|fresh|msi|policy|powershell|race|release|rpm|vm|wine ...
set -euo pipefail

packages=()
for purpose in "$@"; do
	case $purpose in
	cluster) packages+=(docker.io iproute2 iptables nftables conntrack procps util-linux ca-certificates curl) ;;
	wine) packages+=(wine64 gcc-mingw-w64-x86-64 libarchive-tools) ;; # bsdtar is Windows' tar.exe
	cni) packages+=(containernetworking-plugins) ;;
	crun) packages+=(crun) ;;
	docs) packages+=(mkdocs mkdocs-material graphviz fonts-dejavu-core) ;;
	race) packages+=(gcc libc6-dev) ;; # Go's race detector needs a linker
	engine) packages+=(gcc libc6-dev libseccomp-dev pkg-config) ;; # runc is built with cgo
	fresh) packages+=(debootstrap) ;;
	msi) packages+=(wixl msitools) ;;
	policy) packages+=(ipset) ;; # for kube-router
	powershell) packages+=(nodejs npm) ;; # for the parser of hack/powershell.sh
	rpm) packages+=(rpm) ;;
	vm) packages+=(qemu-system-x86 openssh-client debootstrap e2fsprogs) ;;
	release) packages+=(lintian rpm rpmlint man-db debootstrap skopeo) ;; # they only check what Go has made
	*)
		echo "ensure-packages: unknown purpose $purpose: want cluster, cni, crun, docs, engine, fresh, msi, policy, powershell, race, release, rpm, vm or wine" >&2
		exit 1 ;;
	esac
done

missing=()
for package in "${packages[@]}"; do
	dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q ' installed$' || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0
if [ "$(id -u)" != 0 ]; then
	echo "ensure-packages: packages are missing: run as root, or run apt-get install ${missing[*]}" >&2
	exit 1
fi

# One at a time: if apt cleans up after itself, a second run removes the packages that the first is installing.
exec 9>/run/lock/winkube-packages
flock 9

# Services of newly installed packages stay stopped: the machine's engine is not ours to start.
policy=/usr/sbin/policy-rc.d
if [ ! -e $policy ]; then
	printf '#!/bin/sh\nexit 101\n' >$policy
	chmod +x $policy
	trap 'rm -f $policy' EXIT
fi
log=$(mktemp)
echo "install: ${missing[*]}"
start=$SECONDS
if ! { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
	tail -20 "$log" >&2
	echo "installation failed; the whole log: $log" >&2
	exit 1
fi
rm -f "$log"
echo "install: done, $((SECONDS - start)) s"
