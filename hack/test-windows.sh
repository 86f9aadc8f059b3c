#!/usr/bin/env bash
# The Windows half, executed under Wine: the rig and its simulators, the programs as a third node of the cluster, the packages' own tests
# with coverage. A green run proves that our calls are made and the answers handled, not that Windows accepts them.
set -euo pipefail
cd "$(dirname "$0")/.."
source hack/steps.sh

step "packages for Wine" hack/ensure-packages.sh wine cluster
kube_proxy() { # upstream's own program, which package differential runs; it takes minutes the first time
	[ -e _output/tools/windows/kube-proxy.exe ] || GOOS=windows CGO_ENABLED=0 go build -C hack/tools/kubernetes -o ../../../_output/tools/windows/kube-proxy.exe k8s.io/kubernetes/cmd/kube-proxy
}
step "upstream's kube-proxy.exe" kube_proxy

mapfile -t packages < <(go list ./test/windows/... | grep -v '/test/windows/suites/join$')
# The packages' tests are built at low priority while the rig's tests wait. Tests do not run beside the joins: far above the machine's capacity Wine
# sometimes loses a program.
(step "build the packages' tests" go run ./test/windows/cover -only build) >"$logs/built" 2>&1 &
builds=$!
step "rig, simulators, smoke" env WINKUBE_WINE=1 go test -count=1 -timeout 15m "${packages[@]}"
wait $builds || { cat "$logs/built"; exit 1; }
cat "$logs/built"
join() { WINKUBE_WINE=1 WINKUBE_E2E=1 go test -count=1 -timeout 30m -v ./test/windows/suites/join | grep -v '^=== '; }
measured "joins" join || exit
step "packages' tests under Wine" go run ./test/windows/cover -only test
measured "coverage" go run ./test/windows/cover -only report -goal 90 || exit
account
