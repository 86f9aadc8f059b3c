#!/usr/bin/env bash
# Runs all tests: unit tests with the race detector; then, on the two-node cluster, our end-to-end tests, the Windows programs under Wine
# and a part of upstream's suite.
set -euo pipefail
cd "$(dirname "$0")/.."
source hack/steps.sh

# If a cluster of another checkout runs on this machine, the tests use a cluster with another name.
owner=$(cat /run/winkube/owner 2>/dev/null || true)
if [ -z "${WINKUBE_CLUSTER-}" ] && [ "$owner" != "$PWD" ] && [ -d "$owner" ]; then
	export WINKUBE_CLUSTER=t
	echo "A cluster of $owner runs on this machine; these tests use another one, WINKUBE_CLUSTER=t."
fi

# Some unit tests need the race detector's linker, others iptables and nft, those of packages rpm and wixl; without those they skip.
step "packages for unit tests" hack/ensure-packages.sh race cluster msi rpm
step "flags of upstream's programs" go test -C hack/tools/kubernetes ./flags
step "unit tests, race detector" env CGO_ENABLED=1 go test -race -vet=off -timeout 30m ./... # make check vets

# An npm from elsewhere is good enough: Debian's would conflict with it.
command -v npm >/dev/null || step "packages for the PowerShell parser" hack/ensure-packages.sh powershell
step "PowerShell scripts" hack/powershell.sh

step "gotestsum" build_tested
remove_cluster_at_end

# The end-to-end tests wait more than they compute, so two clusters share them. The second one also has the samples and the everyday subset of
# upstream's suite on the engine that users install today, unless ENGINE names another for everything, and then on Debian's. On today's
# engine the kernel decides about Services (PROXY_MODE=auto), on Debian's the relay does. Debian's engine also makes the pods' interfaces there
# (POD_INTERFACES=engine); elsewhere the kubelet does.
other='^Test(Images|KubeadmJoin|Logs.*|NetworkChaos|Node.*|PodInterfaces|Ways)$'
on_second_cluster() {
	export WINKUBE_CLUSTER=${WINKUBE_CLUSTER-}2
	trap 'code=$?; go run ./hack/cluster down || code=1; exit $code' EXIT
	if [ -z "${ENGINE-}" ]; then (
		export ENGINE=29 PROXY_MODE=${PROXY_MODE-auto}
		go run ./hack/cluster up
		SUBSET=1 SIGS=sig-node,sig-storage,sig-network go run ./test/conformance
		WINKUBE_E2E=1 WINKUBE_KEEP=1 tested -timeout 30m -run '^Test(ServicesWithoutProxy|Shim)$' ./test/e2e
		go run ./hack/cluster down
	); fi
	export POD_INTERFACES=${POD_INTERFACES-engine}
	WINKUBE_E2E=1 WINKUBE_KEEP=1 tested -timeout 90m -run "$other" ./test/e2e
	SUBSET=1 go run ./test/conformance # a few tests of each subject; make conformance ENGINE_API= tests other engine versions
}
# Programs of others are compiled before the tests, not beside them.
go run ./hack/cluster build
[ -n "${ENGINE-}" ] || ENGINE=29 go run ./hack/cluster build
start_beside on_second_cluster
WINKUBE_E2E=1 WINKUBE_KEEP=1 tested -timeout 90m -skip "$other" ./test/e2e
join_beside

# All four Windows Servers join: they mostly wait, so they do so beside each other. The other suites run as one of them; make test-windows runs all as
# each. WINKUBE_WINDOWS names the Servers of both.
WINKUBE_JOINS=${WINKUBE_WINDOWS-} WINKUBE_WINDOWS=${WINKUBE_WINDOWS-20348} hack/test-windows.sh
