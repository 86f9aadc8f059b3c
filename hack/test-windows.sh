#!/usr/bin/env bash
# Tests the Windows half under Wine: the rig and its simulators, the programs as a third node of the cluster, the packages' own tests
# with coverage. A green run proves that our calls are made and the answers handled, not that Windows accepts them.
set -euo pipefail
cd "$(dirname "$0")/.."
source hack/steps.sh

step "packages for Wine" hack/ensure-packages.sh wine cluster
step "gotestsum" build_tested
kube_proxy() { # upstream's own program, for package differential; the first build takes minutes
	[ -e _output/tools/windows/kube-proxy.exe ] || GOOS=windows CGO_ENABLED=0 go build -C hack/tools/kubernetes -o ../../../_output/tools/windows/kube-proxy.exe k8s.io/kubernetes/cmd/kube-proxy
}
step "upstream's kube-proxy.exe" kube_proxy
plugins() { # other projects' network plugins, for package plugins
	local windows=(env GOOS=windows CGO_ENABLED=0) to=../../../_output/tools/windows cni=github.com/containernetworking/plugins/plugins
	"${windows[@]}" go build -C hack/tools/plugins -o $to/ $cni/main/windows/win-bridge $cni/main/windows/win-overlay $cni/ipam/host-local
	"${windows[@]}" go build -C hack/tools/flannel -o $to/flanneld.exe github.com/flannel-io/flannel
	"${windows[@]}" go test -C hack/tools/hcsshim -c -tags integration -o $to/hcn.test.exe github.com/Microsoft/hcsshim/hcn
}
step "others' network plugins" plugins
dockerds() { # dockerd.exe of one version, or of three; the first build takes minutes
	go test -count=1 -run '^TestOverlay$' ./test/windows/rig # writes the overlay of Go's standard library
	local name
	for name in dockerd-28 ${WINKUBE_WINDOWS:-dockerd-25 dockerd-29}; do
		[[ $name != dockerd-* ]] || [ -e "_output/tools/windows/$name.exe.manifest" ] || hack/dockerd.sh "$name" "$PWD/_output/wine/overlay/overlay.json"
	done
}
step "others' dockerd.exe" dockerds

mapfile -t packages < <(go list ./test/windows/... | grep -v '/test/windows/suites/join$')
# The packages' tests are built at low priority while the rig's tests wait. They do not run in parallel to the joins: on an overloaded machine Wine
# sometimes loses a program.
(step "build the packages' tests" go run ./test/windows/cover -only build) >"$logs/built" 2>&1 &
builds=$!
step "rig, simulators, smoke" env WINKUBE_WINE=1 go test -count=1 -timeout 60m "${packages[@]}"
wait $builds || { cat "$logs/built"; exit 1; }
cat "$logs/built"
join() { WINKUBE_WINDOWS=${WINKUBE_JOINS-${WINKUBE_WINDOWS-}} WINKUBE_WINE=1 WINKUBE_E2E=1 tested -timeout 120m ./test/windows/suites/join | grep -vE '^=== (RUN|PAUSE|CONT|NAME)'; }
measured "joins" join || exit
# Another cluster, since the first one has IPv4 alone.
dual() { WINKUBE_CLUSTER=${WINKUBE_CLUSTER-}d DUAL_STACK=1 WINKUBE_WINDOWS=20348 WINKUBE_WINE=1 WINKUBE_E2E=1 tested -timeout 20m -run '^TestDualStack$' ./test/windows/suites/join | grep -vE '^=== (RUN|PAUSE|CONT|NAME)'; }
measured "dual stack" dual || exit
step "packages' tests under Wine" go run ./test/windows/cover -only test
measured "coverage" go run ./test/windows/cover -only report -goal 85 || exit
account
