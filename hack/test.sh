#!/usr/bin/env bash
# Everything: unit tests under the race detector, then the two-node cluster: our end-to-end tests and a subset of upstream's suite on it.
set -euo pipefail
cd "$(dirname "$0")/.."
source hack/steps.sh

step "unit tests, race detector" go test -race -timeout 8m ./...
WINKUBE_E2E=1 go test -count=1 -v -timeout 60m ./test/e2e

# Upstream's suite: a few tests of each subject, then how engines of other versions are served. A cluster that ran before stays.
for api in "" 1.24 1.41 min1.44; do
	SUBSET=1 ENGINE_API=$api go run ./test/conformance
done
