#!/usr/bin/env bash
# All tests: unit tests with the race detector, then on the two-node cluster our end-to-end tests, the Windows programs under Wine
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
step "unit tests, race detector" go test -race -timeout 8m ./...

# The cluster is removed at the end, which fails when something is left behind; one that ran before the tests stays.
ran=yes
if grep -qw down <<<"$(go run ./hack/cluster status)"; then ran=no; fi
finish() {
	local code=$?
	[ $ran = yes ] || go run ./hack/cluster down || code=1
	exit $code
}
trap finish EXIT
WINKUBE_E2E=1 WINKUBE_KEEP=1 go test -count=1 -v -timeout 60m ./test/e2e
# One Windows Server joins here; make test-windows joins all of them. So does an empty WINKUBE_WINDOWS.
WINKUBE_WINDOWS=${WINKUBE_WINDOWS-20348} hack/test-windows.sh

# A few tests of each subject of upstream's suite. make conformance ENGINE_API= has engines of other versions.
SUBSET=1 go run ./test/conformance
