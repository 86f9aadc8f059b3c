#!/usr/bin/env bash
# Tests a node on a virtual machine with its own kernel, systemd, cgroup v2, AppArmor and an NFS server: Debian 13 under QEMU. The release's package is
# installed there, and the machine joins the cluster of make up. The processor is emulated, so it takes most of an hour.
set -euo pipefail
cd "$(dirname "$0")/.."
source hack/steps.sh

step "packages for the machine" hack/ensure-packages.sh cluster vm msi
step "the machine's disk" hack/vm-image.sh _output/vm
step "programs" hack/build.sh
step "the release's package" go run ./hack/release -dirty -only deb -programs _output/bin/linux/amd64 -out _output/vm/release
remove_cluster_at_end
go run ./hack/cluster up
WINKUBE_VM=1 go test -count=1 -v -timeout "$([[ -n ${WINKUBE_SUITE:-} ]] && echo 120m || echo 60m)" ./test/vm
