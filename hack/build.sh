#!/usr/bin/env bash
# Builds the binaries into _output/bin/<os>/<arch>/: static and reproducible, so that two builds of one commit are the same file.
set -euo pipefail
cd "$(dirname "$0")/.."

platforms=${KUBE_BUILD_PLATFORMS:-$(go env GOHOSTOS)/$(go env GOHOSTARCH)}
what=("$@"); [ ${#what[@]} -gt 0 ] || what=(cmd/kubelet cmd/kube-proxy)
pkg=github.com/winkube/winkube/pkg/daemon
commit=$(git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
[ -z "$(git status --porcelain --untracked-files=no 2>/dev/null)" ] || commit=$commit-dirty
flags="-s -w -X $pkg.Version=$(cat hack/VERSION) -X $pkg.Commit=$commit"

# Without the tag grpc brings html/template, whose calls by name keep the linker from dropping any method: 19 MB more.
tags=grpcnotrace

for platform in $platforms; do
	os=${platform%/*} arch=${platform#*/}
	case $os in linux | windows) ;; *)
		echo "build: KUBE_BUILD_PLATFORMS: $platform: want linux/ARCH or windows/ARCH, such as linux/amd64" >&2
		exit 1 ;;
	esac
	for target in "${what[@]}"; do
		case ${target%/} in
		cmd/kubelet) name=kubelet ;;
		cmd/kube-proxy) name=proxy ;;
		*)
			echo "build: WHAT: $target: want cmd/kubelet or cmd/kube-proxy" >&2
			exit 1 ;;
		esac
		[ "$os" != windows ] || name=$name.exe
		out=_output/bin/$os/$arch/$name
		start=$SECONDS
		CGO_ENABLED=0 GOOS=$os GOARCH=$arch go build -trimpath -buildvcs=false -tags $tags -ldflags "$flags" -o "$out" "./${target%/}"
		printf '%-40s %5.1f MB  %3d s\n' "$out" "$(stat -c %s "$out" | awk '{print $1/1e6}')" $((SECONDS - start))
	done
done
