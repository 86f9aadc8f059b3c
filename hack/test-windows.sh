#!/usr/bin/env bash
# The Windows half, executed under Wine: the rig and its simulators, the programs as a third node of the cluster, the packages' own tests
# with coverage. A green run proves that our calls are made and the answers handled, not that Windows accepts them.
set -euo pipefail
cd "$(dirname "$0")/.."
source hack/steps.sh

mapfile -t packages < <(go list ./test/windows/... | grep -v '/test/windows/join$')
step "packages for Wine" hack/ensure-packages.sh wine cluster
kube_proxy() { # upstream's own program, which package differential runs; it takes minutes the first time
	[ -e _output/tools/windows/kube-proxy.exe ] || GOOS=windows CGO_ENABLED=0 go build -C hack/tools/kubernetes -o ../../../_output/tools/windows/kube-proxy.exe k8s.io/kubernetes/cmd/kube-proxy
}
step "upstream's kube-proxy.exe" kube_proxy
step "rig, simulators, smoke" env WINKUBE_WINE=1 go test -count=1 -timeout 15m "${packages[@]}"
WINKUBE_WINE=1 WINKUBE_E2E=1 go test -count=1 -timeout 30m -v ./test/windows/join | grep -v '^=== '
go run ./test/windows/cover -goal 90
