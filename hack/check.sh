#!/usr/bin/env bash
# The inner loop: every check that needs no cluster, for both systems. make test runs it with WINKUBE_TEST=1: the unit tests and the programs under Wine
# are left to hack/test.sh, which runs more of them.
set -euo pipefail
cd "$(dirname "$0")/.."
source hack/steps.sh

vet() { GOOS=$1 go vet ./...; }
lint() {
	go build -C hack/tools/lint -o ../../../_output/tools/staticcheck honnef.co/go/tools/cmd/staticcheck
	GOOS=$1 _output/tools/staticcheck ./...
}
modules() { go mod tidy -diff && go mod verify >/dev/null; }
plain() { # go build without our script and flags, on either system
	for os in linux windows; do
		GOOS=$os go build -o /dev/null cmd/kubelet/kubelet.go
		GOOS=$os go build -o /dev/null cmd/kube-proxy/proxy.go
	done
}
binaries() { KUBE_BUILD_PLATFORMS="linux/amd64 windows/amd64" hack/build.sh; }
versions() {
	for name in kubelet proxy; do
		got=$(_output/bin/linux/amd64/$name --version)
		[ "$got" = "Kubernetes v1.36.3" ] || { echo "$name --version printed: $got"; return 1; }
	done
}

mkdir -p _output/tools
step "modules" modules
step "vet linux" vet linux
step "vet windows" vet windows
step "lint linux" lint linux
step "lint windows" lint windows
[ -n "${WINKUBE_TEST-}" ] || step "unit tests" go test -timeout 30m ./...
step "plain go build" plain
step "binaries" binaries
step "versions" versions
[ -n "${WINKUBE_TEST-}" ] || step "smoke under Wine" hack/smoke.sh
echo "check: all passed in $SECONDS s"
