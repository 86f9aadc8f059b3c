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

step "packages for the race detector" hack/ensure-packages.sh race
step "flags of upstream's programs" go test -C hack/tools/kubernetes ./flags
step "unit tests, race detector" go test -race -vet=off -timeout 30m ./... # make check vets

# An npm from elsewhere is good enough: Debian's would conflict with it.
command -v npm >/dev/null || step "packages for the PowerShell parser" hack/ensure-packages.sh powershell
step "PowerShell scripts" hack/powershell.sh

# The cluster is removed at the end, which fails if anything remains. A cluster that ran before the tests stays.
ran=yes
if grep -qw down <<<"$(go run ./hack/cluster status)"; then ran=no; fi
finish() {
	local code=$?
	[ $ran = yes ] || go run ./hack/cluster down || code=1
	exit $code
}
trap finish EXIT

# The samples and the everyday subset on the engine that users install today, before the cluster on Debian's. A running cluster keeps its own engine.
if [ $ran = no ] && [ -z "${ENGINE-}" ]; then
	export ENGINE=29
	go run ./hack/cluster up
	SUBSET=1 SIGS=sig-node,sig-storage,sig-network go run ./test/conformance
	go run ./hack/cluster down
	unset ENGINE
fi
WINKUBE_E2E=1 WINKUBE_KEEP=1 go test -count=1 -v -timeout 180m ./test/e2e
# One Windows Server joins here. make test-windows joins all of them, as does an empty WINKUBE_WINDOWS.
WINKUBE_WINDOWS=${WINKUBE_WINDOWS-20348} hack/test-windows.sh

# Runs a few tests of each subject of upstream's suite. make conformance ENGINE_API= tests other engine versions.
SUBSET=1 go run ./test/conformance
