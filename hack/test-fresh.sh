#!/usr/bin/env bash
# Runs the README's commands on a fresh machine, simulated by a root directory: a minimal Debian of this machine's release with Go, make, git and the
# files that git tracks. Mounts, processes, cgroups and host name are separate; network and kernel are the machine's.
#
#   packages  what hack/ensure-packages.sh installs
#   smoke     both .exe, built and run under Wine, as make check does
#   build     the README's commands to build
#   up        make up, the line that makes kubectl work, make down
#   test      make test
#
# PARTS selects parts. With only smoke and packages the run uses this machine's Go caches, so nothing is compiled twice; otherwise it starts with
# empty ones. CACHES=machine or CACHES=empty overrides this. Packages that apt has downloaded are kept in _output/fresh.
#
# The script runs in three stages: as called, which cleans up; contained, with separate mounts and processes; inside, in the other root.
set -euo pipefail
cd "$(dirname "$0")/.."
all="packages smoke build up test"
parts=${PARTS:-$all}
for part in $parts; do
	grep -qw -- "$part" <<<"$all" || { echo "test-fresh: PARTS: $part: want some of $all" >&2; exit 1; }
done
caches=empty
[[ " $parts " =~ \ (build|up|test)\  ]] || caches=machine
caches=${CACHES:-$caches}
case $caches in empty | machine) ;; *) echo "test-fresh: CACHES: $caches: want empty or machine" >&2; exit 1 ;; esac
source hack/steps.sh
work=$PWD/_output/fresh
checkout=/root/winkube # below a directory that only root may enter, like many checkouts

# Inside.

readme() { awk '/^## / {on = /^## Build/} on && sub(/^    /, "") {sub(/ +#.*/, ""); print}' README.md; }
packages() { hack/ensure-packages.sh cluster wine cni race engine msi rpm; }
smoke() { KUBE_BUILD_PLATFORMS=windows/amd64 hack/build.sh && hack/smoke.sh 20m; }
build() { readme | bash -exuo pipefail; }
up() {
	make up
	bash -ec "$(go run ./hack/cluster kubeconfig); kubectl get pods -A -o wide"
	make down
}

if [ "${1-}" = inside ]; then
	SECONDS=$2
	for part in $parts; do
		case $part in
		packages) step "fresh packages" packages ;;
		smoke) step "fresh smoke under Wine" smoke ;;
		build) step "fresh build" build ;;
		up) printf '[%4d s] fresh make up\n' $SECONDS && (up) ;; # it prints its own steps; so does the next part
		test) printf '[%4d s] fresh make test\n' $SECONDS && make test ;;
		esac
	done
	exit
fi

# Contained.

release=$(. /etc/os-release && echo "$VERSION_CODENAME")
keyring=/usr/share/keyrings/debian-archive-keyring.gpg

# sources prints this machine's sources of Debian packages, the only ones that the fresh machine gets.
sources() {
	apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' | sort -u |
		awk -v release="$release" -v keyring=$keyring '$2 ~ "^" release "(-updates|-security)?$" {printf "deb [signed-by=%s] %s %s %s\n", keyring, $1, $2, $3}'
}

debian() {
	local mirror
	mirror=$(sources | awk -v release="$release" '$4 == release && $5 == "main" {print $3; exit}')
	[ -n "$mirror" ] || { echo "apt has no source for Debian $release main: add one, then run apt-get update"; return 1; }
	mkdir -p "$work/debs" "$work/archives/partial" "$root/etc/dpkg/dpkg.cfg.d"
	echo force-unsafe-io >"$root/etc/dpkg/dpkg.cfg.d/unsafe-io" # nothing in there must survive a crash
	debootstrap --variant=minbase --cache-dir="$work/debs" --include=ca-certificates,git,make "$release" "$root" "$mirror"
	rm -rf "$root"/var/cache/* "$root"/etc/apt/sources.list
	mkdir -p "$root/var/cache/apt/archives/partial" "$root/usr/local/share/ca-certificates" "$root/usr/local/go"
	sources >"$root/etc/apt/sources.list"
	apt-config dump | grep -E '^Acquire::(https?|Check)[^ ]* ' >"$root/etc/apt/apt.conf.d/99machine" || true
	cp -L /etc/resolv.conf /etc/hosts "$root/etc/"
	echo fresh >"$root/etc/hostname"
	echo "127.0.0.1 fresh" >>"$root/etc/hosts"
	find /usr/local/share/ca-certificates -name '*.crt' -exec cp -Lt "$root/usr/local/share/ca-certificates" {} +
	chroot "$root" update-ca-certificates
}

# tracked copies the files that git tracks, with uncommitted changes, into a new repository. The checkout may belong to another user.
tracked() {
	local to=$root$checkout file
	mkdir -p "$to"
	GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0=$PWD git ls-files -z |
		while IFS= read -r -d '' file; do [ ! -e "$file" ] || printf '%s\0' "$file"; done | tar -c --null -T - | tar -x --no-same-owner -C "$to"
	git -C "$to" init -q
	git -C "$to" add -A -f
	git -C "$to" -c user.name=fresh -c user.email=fresh@localhost commit -q -m "the checkout"
}

# mounts mounts the file systems that a machine has besides its disk.
mounts() {
	local device link point options
	mount --bind "$root" "$root"
	mount -t proc proc "$root/proc"
	mount -t sysfs sysfs "$root/sys"
	if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
		mount --rbind /sys/fs/cgroup "$root/sys/fs/cgroup"
	else
		# In a cgroup namespace created here, the roots of the hierarchies are the cgroups of the run.
		awk '/ - cgroup2? / {print $5, $NF}' /proc/self/mountinfo >"$root/tmp/hierarchies"
		mount -t tmpfs -o mode=755 tmpfs "$root/sys/fs/cgroup"
		while read -r point options; do
			mkdir "$root$point"
			case $point in
			*/unified) unshare --cgroup mount -t cgroup2 cgroup2 "$root$point" ;;
			*) unshare --cgroup mount -t cgroup -o "${options#rw,}" cgroup "$root$point" ;;
			esac
		done <"$root/tmp/hierarchies"
		rm "$root/tmp/hierarchies"
	fi
	mount -t tmpfs -o mode=755 tmpfs "$root/dev"
	for device in null zero full random urandom tty kmsg fuse net/tun loop-control loop{0..7}; do
		[ -e "/dev/$device" ] || continue
		mkdir -p "$(dirname "$root/dev/$device")"
		touch "$root/dev/$device"
		mount --bind "/dev/$device" "$root/dev/$device"
	done
	mkdir "$root/dev/pts" "$root/dev/shm"
	mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts "$root/dev/pts"
	mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
	for link in ptmx:pts/ptmx fd:/proc/self/fd stdin:/proc/self/fd/0 stdout:/proc/self/fd/1 stderr:/proc/self/fd/2; do
		ln -s "${link#*:}" "$root/dev/${link%%:*}"
	done
	mount -t tmpfs -o mode=755 tmpfs "$root/run"
	mkdir -p "$root/run/lock" "$root$checkout/_output/logs"
	mount --bind "$(go env GOROOT)" "$root/usr/local/go"
	mount -o remount,bind,ro "$root/usr/local/go"
	mount --bind "$work/archives" "$root/var/cache/apt/archives"
	mount --bind "$PWD/_output/logs/fresh" "$root$checkout/_output/logs"
}

if [ "${1-}" = contained ]; then
	root=$2 groups=$3
	step "a minimal Debian" debian
	step "a checkout in it" tracked
	for group in $groups; do echo 0 >"$group/cgroup.procs"; done
	echo fresh >/proc/sys/kernel/hostname
	rm -rf _output/logs/fresh
	mkdir -p _output/logs/fresh
	mounts
	# The machine's settings for Go and for proxies also apply inside.
	mapfile -t choices < <(env | grep -E '^((http|https|no|all)_proxy|(HTTP|HTTPS|NO|ALL)_PROXY|WINKUBE_[A-Z]+|NETWORK_MODE|ENGINE|TERM)=' || true)
	for name in GOPROXY GOSUMDB GOPRIVATE GONOPROXY GONOSUMDB GOINSECURE GOFLAGS GOTOOLCHAIN; do
		choices+=("$name=$(go env $name)")
	done
	if [ $caches = machine ]; then
		for name in GOMODCACHE GOCACHE; do
			dir=$(go env $name)
			mkdir -p "$dir" "$root$dir"
			mount --bind "$dir" "$root$dir"
			choices+=("$name=$dir")
		done
		dir=${STATICCHECK_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/staticcheck}
		mkdir -p "$dir" "$root$dir"
		mount --bind "$dir" "$root$dir"
		choices+=("STATICCHECK_CACHE=$dir")
	fi
	# pivot_root, not chroot: a container's first process also pivots, and a process that joins its mounts later starts at their root.
	cd "$root"
	mkdir old
	pivot_root . old
	exec unshare --cgroup /usr/bin/env -i PATH=/usr/local/go/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
		HOME=/root LANG=C.UTF-8 "PARTS=$parts" "${choices[@]}" bash -c "umount -l /old && rmdir /old && cd $checkout && exec hack/test-fresh.sh inside $SECONDS"
fi

# As called.

[ "$(id -u)" = 0 ] || { echo "test-fresh: cannot make a root file system: run as root" >&2; exit 1; }
root=$work/root.$$

# cgroup prints the paths of the current cgroups, one line per hierarchy. If version 2 has all controllers it prints nothing, and the run uses the
# machine's cgroups: a cgroup that contains processes may not have children with controllers.
cgroup() {
	local names path point
	[ ! -e /sys/fs/cgroup/cgroup.controllers ] || return 0
	while IFS=: read -r _ names path; do
		point=$(awk -v names="$names" 'names == "" && / - cgroup2 / {print $5; exit}
			names != "" && / - cgroup / {n = split($NF, o, ","); for (i = 1; i <= n; i++) if (index("," names ",", "," o[i] ",")) {print $5; exit}}' /proc/self/mountinfo)
		[ -n "$point" ] || continue
		[ -d "$point$path" ] || path=
		echo "${point}${path%/}"
	done </proc/self/cgroup
}

# own_cgroups creates the cgroups of the run.
own_cgroups() {
	local parent dir file
	for parent in $(cgroup); do
		dir=$parent/winkube-fresh.$$
		mkdir -p "$dir"
		for file in cpuset.cpus cpuset.mems; do
			[ ! -e "$dir/$file" ] || [ -n "$(cat "$dir/$file")" ] || cat "$parent/$file" >"$dir/$file"
		done
		echo "$dir"
	done
}

# remove_leftovers cleans up after this run and runs that have ended. A process that was just killed may keep a cgroup busy for a moment.
remove_leftovers() {
	local old
	for old in "$work"/root.* $(cgroup | sed 's|$|/winkube-fresh.*|'); do
		[ -d "$old" ] || continue
		[ "${old##*.}" = $$ ] || [ ! -d "/proc/${old##*.}" ] || continue
		for _ in {1..600}; do
			case $old in
			"$work"/*) rm -rf --one-file-system "$old" && break ;;
			*) find "$old" -depth -type d -exec rmdir {} + && break ;;
			esac
			sleep 0.1
		done 2>/dev/null
		[ ! -d "$old" ] || { echo "test-fresh: cannot remove $old: end what uses it, then run make test-fresh again"; return 1; }
	done
}

child=
finish() {
	local code=$?
	trap '' EXIT INT TERM HUP
	if [ -n "$child" ]; then
		kill -KILL "$child" 2>/dev/null || true
		wait "$child" 2>/dev/null || true
	fi
	[ $code = 0 ] || [ ! -e _output/logs/fresh ] || echo "test-fresh: logs of the fresh machine are in _output/logs/fresh"
	remove_leftovers || code=1
	exit $code
}
trap finish EXIT
trap 'exit 130' INT TERM HUP

step "debootstrap" hack/ensure-packages.sh fresh
remove_leftovers
# When the first process of these namespaces ends, the kernel ends all others and removes all mounts. It ends with unshare, and unshare with this script,
# even after kill -9.
PARTS=$parts CACHES=$caches setpriv --pdeathsig KILL unshare --mount --propagation private --pid --fork --kill-child=KILL --mount-proc --ipc --uts \
	hack/test-fresh.sh contained "$root" "$(own_cgroups)" &
child=$!
wait $child
child=
echo "test-fresh: $parts passed in $SECONDS s"
