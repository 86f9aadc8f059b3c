#!/usr/bin/env bash
# The README's commands on a machine that nobody has touched, as far as a chroot can be one: a minimal Debian of this machine's release, with the
# files that git tracks, Go, make and git in it and nothing else. It has mounts, processes, cgroups and a host name of its own; network and kernel
# are the machine's.
#
#   packages  what hack/ensure-packages.sh installs
#   smoke     both .exe, built and run under Wine, as make check does
#   build     the README's commands to build
#   up        make up, the line that makes kubectl work, make down
#   test      make test
#
# PARTS chooses among them. With smoke and packages alone Go's caches are this machine's, so that nothing is compiled twice; with the others they
# start empty. CACHES=machine or CACHES=empty decides otherwise. Packages that apt has downloaded are kept in _output/fresh.
set -euo pipefail
cd "$(dirname "$0")/.."
all="packages smoke build up test"
parts=${PARTS:-$all}
for part in $parts; do
	grep -qw -- "$part" <<<"$all" || { echo "test-fresh: PARTS: $part: know $all" >&2; exit 1; }
done
caches=empty
[[ " $parts " =~ \ (build|up|test)\  ]] || caches=machine
caches=${CACHES:-$caches}
case $caches in empty | machine) ;; *) echo "test-fresh: CACHES: $caches: know empty and machine" >&2; exit 1 ;; esac
source hack/steps.sh
work=$PWD/_output/fresh
root=$work/root.$$
checkout=/root/winkube # below a directory that only root may enter, as many a checkout is

# Inside: the first process of the chroot's own.
if [ "${1-}" = inside ]; then
	SECONDS=$2
	readme() { awk '/^## Build/ {on = 1} /^## Run/ {on = 0} on && sub(/^    /, "") {sub(/ +#.*/, ""); print}' README.md; }
	packages() { hack/ensure-packages.sh cluster wine cni race; }
	smoke() { KUBE_BUILD_PLATFORMS=windows/amd64 hack/build.sh && hack/smoke.sh 6m; }
	build() { readme | bash -exuo pipefail; }
	up() {
		make up
		bash -ec "$(go run ./hack/cluster kubeconfig); kubectl get pods -A -o wide"
		make down
	}
	for part in $parts; do
		case $part in
		packages) step "fresh packages" packages ;;
		smoke) step "fresh smoke under Wine" smoke ;;
		build) step "fresh build" build ;;
		up) printf '[%4d s] fresh make up\n' $SECONDS && (up) ;; # it prints steps of its own, and so does the next
		test) printf '[%4d s] fresh make test\n' $SECONDS && make test ;;
		esac
	done
	exit
fi
[ "$(id -u)" = 0 ] || { echo "test-fresh: a root file system of its own wants root: run as root" >&2; exit 1; }

# cgroups DO makes or removes a cgroup of the run's own below the present one, in each hierarchy of version 1.
cgroups() {
	local line path dir mount file
	while IFS=: read -r _ line path; do
		[ -n "$line" ] || continue # version 2: the machine's is used
		for mount in $(awk -v names="$line" '$0 ~ " - cgroup " {n = split($NF, o, ","); for (i = 1; i <= n; i++) if (index("," names ",", "," o[i] ",")) {print $5; exit}}' /proc/self/mountinfo); do
			dir=$mount$path/winkube-fresh.$$
			[ -d "$mount$path" ] || dir=$mount/winkube-fresh.$$
			case $1 in
			make)
				mkdir -p "$dir"
				for file in cpuset.cpus cpuset.mems; do
					[ ! -e "$dir/$file" ] || [ -n "$(cat "$dir/$file")" ] || cat "${dir%/*}/$file" >"$dir/$file"
				done
				echo "$dir" ;;
			remove) [ ! -d "$dir" ] || find "$dir" -depth -type d -exec rmdir {} + 2>/dev/null || true ;;
			esac
		done
	done </proc/self/cgroup
}

# contained SCRIPT ARGUMENT... runs a script with mounts and processes of its own: when its first process ends, even by kill -9 of this script,
# the kernel takes all of them away.
child=
contained() {
	unshare --mount --propagation private --pid --fork --kill-child=KILL --mount-proc --ipc --uts bash -euo pipefail -c "$@" &
	child=$!
	wait $child
	local code=$?
	child=
	return $code
}
finish() {
	local code=$?
	trap - EXIT INT TERM HUP
	if [ -n "$child" ]; then
		kill -KILL "$child" 2>/dev/null || true
		wait "$child" 2>/dev/null || true
	fi
	[ $code = 0 ] || [ ! -e "$root" ] || echo "test-fresh: logs of the fresh machine are in _output/logs/fresh"
	cgroups remove
	rm -rf --one-file-system "$root"
	exit $code
}
trap finish EXIT
trap 'exit 130' INT TERM HUP

release=$(. /etc/os-release && echo "$VERSION_CODENAME")
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
# sources prints this machine's sources of Debian packages; of other origins there are none in the fresh one.
sources() {
	apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' | sort -u |
		awk -v release="$release" -v keyring=$keyring '$2 ~ "^" release "(-updates|-security)?$" {printf "deb [signed-by=%s] %s %s %s\n", keyring, $1, $2, $3}'
}

debian() {
	local mirror
	mirror=$(sources | awk -v release="$release" '$4 == release && $5 == "main" {print $3; exit}')
	[ -n "$mirror" ] || { echo "apt has no source for Debian $release main: add one, then apt-get update"; return 1; }
	mkdir -p "$work/debs" "$work/archives" "$root/etc/dpkg/dpkg.cfg.d"
	echo force-unsafe-io >"$root/etc/dpkg/dpkg.cfg.d/unsafe-io" # nothing in there outlives a crash
	contained 'exec debootstrap --variant=minbase --cache-dir="$1" --include=ca-certificates,git,make "$2" "$3" "$4"' - "$work/debs" "$release" "$root" "$mirror"
	rm -rf "$root"/var/cache/* "$root"/etc/apt/sources.list
	mkdir -p "$root"/var/cache/apt/archives/partial
	sources >"$root/etc/apt/sources.list"
	apt-config dump | grep -E '^Acquire::(https?|Check)[^ ]* ' >"$root/etc/apt/apt.conf.d/99machine" || true
	cp -L /etc/resolv.conf /etc/hosts "$root/etc/"
	echo fresh >"$root/etc/hostname"
	echo "127.0.0.1 fresh" >>"$root/etc/hosts"
	mkdir -p "$root/usr/local/share/ca-certificates" "$root/usr/local/go"
	find /usr/local/share/ca-certificates -name '*.crt' -exec cp -Lt "$root/usr/local/share/ca-certificates" {} +
	chroot "$root" update-ca-certificates
}

checkout() {
	git clone -q --depth 1 "file://$PWD" "$root$checkout"
	git -C "$root$checkout" remote remove origin
	# What is tracked and not committed yet.
	git -C "$root$checkout" ls-files -z | (cd "$root$checkout" && xargs -0 rm -f)
	git ls-files -z | while IFS= read -r -d '' file; do [ ! -e "$file" ] || printf '%s\0' "$file"; done | tar -c --null -T - | tar -x -C "$root$checkout"
}

step "debootstrap" hack/ensure-packages.sh fresh
step "a minimal Debian" debian
step "a checkout in it" checkout

binds=
if [ $caches = machine ]; then
	mkdir -p "$(go env GOMODCACHE)" "$(go env GOCACHE)"
	binds="$(go env GOMODCACHE) $(go env GOCACHE)"
fi
keep=$PWD/_output/logs/fresh
rm -rf "$keep"
mkdir -p "$keep"
groups=$(cgroups make)
# What the machine's owner has chosen for Go and for ways out of the machine holds in there, too.
mapfile -t choices < <(env | grep -E '^((http|https|no|all)_proxy|(HTTP|HTTPS|NO|ALL)_PROXY|WINKUBE_[A-Z]+|NETWORK_MODE|TERM)=' || true)
for name in GOPROXY GOSUMDB GOPRIVATE GONOPROXY GONOSUMDB GOINSECURE GOFLAGS GOTOOLCHAIN; do
	choices+=("$name=$(go env $name)")
done
for cache in $binds; do choices+=("$([ "$cache" = "${binds%% *}" ] && echo GOMODCACHE || echo GOCACHE)=$cache"); done

contained '
root=$1 goroot=$2 archives=$3 keep=$4 binds=$5 groups=$6 checkout=$7 begun=$8
shift 8
for group in $groups; do echo 0 >"$group/cgroup.procs"; done
hostname fresh 2>/dev/null || echo fresh >/proc/sys/kernel/hostname
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
	mount --rbind /sys/fs/cgroup "$root/sys/fs/cgroup"
else
	# The roots of these hierarchies are the cgroups that this process is in now.
	exec 8< <(awk "/ - cgroup2? / {print \$5, \$NF}" /proc/self/mountinfo)
	mount -t tmpfs -o mode=755 tmpfs "$root/sys/fs/cgroup"
	while read -r point options <&8; do
		mkdir "$root$point"
		case $point in
		*/unified) unshare --cgroup mount -t cgroup2 cgroup2 "$root$point" ;;
		*) unshare --cgroup mount -t cgroup -o "$(sed "s/^rw,//" <<<"$options")" cgroup "$root$point" ;;
		esac
	done
fi
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
for device in null zero full random urandom tty fuse net/tun; do
	[ -e "/dev/$device" ] || continue
	mkdir -p "$(dirname "$root/dev/$device")" && touch "$root/dev/$device" && mount --bind "/dev/$device" "$root/dev/$device"
done
mkdir "$root/dev/pts" "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts "$root/dev/pts"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
for link in ptmx:pts/ptmx fd:/proc/self/fd stdin:/proc/self/fd/0 stdout:/proc/self/fd/1 stderr:/proc/self/fd/2; do ln -s "${link#*:}" "$root/dev/${link%%:*}"; done
mount -t tmpfs -o mode=755 tmpfs "$root/run"
mkdir -p "$root/run/lock" "$root$checkout/_output/logs"
mount --bind "$goroot" "$root/usr/local/go" && mount -o remount,bind,ro "$root/usr/local/go"
mount --bind "$archives" "$root/var/cache/apt/archives" && mkdir -p "$archives/partial"
mount --bind "$keep" "$root$checkout/_output/logs"
for dir in $binds; do mkdir -p "$root$dir" && mount --bind "$dir" "$root$dir"; done
exec unshare --cgroup chroot "$root" /usr/bin/env -i PATH=/usr/local/go/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 "$@" \
	bash -c "cd $checkout && exec hack/test-fresh.sh inside $begun"
' - "$root" "$(go env GOROOT)" "$work/archives" "$keep" "$binds" "$groups" "$checkout" "$SECONDS" "PARTS=$parts" "${choices[@]}"
echo "test-fresh: $parts passed in $SECONDS s"
