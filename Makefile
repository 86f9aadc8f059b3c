# winkube: kubelet and proxy for hosts with Docker. `make help` lists the targets.
SHELL := /bin/bash
.DEFAULT_GOAL := all

# As hack/build.sh builds, so that tools, checks and tests use the packages that it compiled, in any checkout.
export GOFLAGS := $(filter-out -trimpath,$(shell go env GOFLAGS 2>/dev/null)) -trimpath
export CGO_ENABLED := 0

## all: build kubelet and proxy; WHAT=cmd/kubelet picks one, KUBE_BUILD_PLATFORMS="windows/amd64 linux/arm64" other platforms
.PHONY: all
all:
	@hack/build.sh $(WHAT)

## up: a two-node cluster on this machine with the samples served (installs what is missing); ENGINE=25|28|29|29-overlay2|29-nftables instead of Debian's Docker, RUNTIME=crun|runc-privileged instead of runc; STORAGE=csi with a CSI driver and a default StorageClass; CONTROL_PLANE=1.33|1.37 with another API server, scheduler and controller manager
.PHONY: up
up:
	@go run ./hack/cluster up

## down: remove every trace of the cluster
.PHONY: down
down:
	@go run ./hack/cluster down

## check: format, vet and lint for both systems, layout rules, unit tests, smoke under Wine; the inner loop
.PHONY: check
check:
	@hack/check.sh

## test: check, unit tests with the race detector, then the end-to-end run on the two-node cluster
.PHONY: test
test:
	@WINKUBE_TEST=1 hack/check.sh
	@hack/test.sh

## test-fresh: the README's commands in a fresh minimal Debian; PARTS="packages smoke" are the cheap ones, the others build, up, test; CACHES=machine|empty
.PHONY: test-fresh
test-fresh:
	@hack/test-fresh.sh

## test-vm: a node on a virtual machine with its own kernel and systemd, from the release's package to its purge (about an hour)
.PHONY: test-vm
test-vm:
	@hack/test-vm.sh

## test-windows: kubelet.exe and proxy.exe under Wine: simulators, joining the cluster as each Windows Server, coverage
.PHONY: test-windows
test-windows:
	@KUBE_BUILD_PLATFORMS=windows/amd64 hack/build.sh
	@WINKUBE_ZIP=1 WINKUBE_DOCKERD=1 hack/test-windows.sh

## bench: pods all together and one at a time, latency, CPU and memory, beside the bare engine; then the proxy's control plane
.PHONY: bench
bench: control
	@go run ./test/bench

## control: the part of bench that measures the proxy's control plane at 100 and at 10,000 services
.PHONY: control
control:
	@hack/build.sh cmd/kube-proxy
	@go run ./test/bench/control

## golden: rewrite every golden file from what the code prints now
.PHONY: golden
golden:
	@hack/golden.sh

## stress: run one package's tests many times under the race detector: make stress PKG=./pkg/pod/...
.PHONY: stress
stress:
	CGO_ENABLED=1 go test -race -count=200 -failfast $(PKG)

## sizes: sizes of the four binaries
.PHONY: sizes
sizes:
	@KUBE_BUILD_PLATFORMS="linux/amd64 windows/amd64" hack/build.sh
	@ls -l _output/bin/linux/amd64/* _output/bin/windows/amd64/* | awk '{printf "%-44s %6.1f MB\n", $$NF, $$5/1e6}'

## release: archives, packages, sums and statements of this commit into _output/release (installs wixl for the msi; hack/release -h lists flags)
.PHONY: release
release:
	@hack/ensure-packages.sh msi
	@go run ./hack/release

## conformance: upstream's own end-to-end suite on the two nodes; SIGS= FOCUS= SKIP= PROCS= NODES=1|2|3 SERIAL=1 ALL=1 WIDE=1 SUBSET=1 NETWORK_MODE=overlay|cni DUAL_STACK=1 PROXY_MODE=connect PROXY_LACKS=cgroup2|bpffs|rights STORAGE=csi CONTROL_PLANE=1.33|1.37 ENGINE=25|28|29|29-overlay2|29-nftables RUNTIME=crun|runc-privileged ENGINE_API=1.24|1.41|min1.44
.PHONY: conformance
conformance:
	@go run ./test/conformance

## docs: build the documentation into _output/site and check its links (installs what is missing)
.PHONY: docs
docs:
	@hack/docs.sh

## clean: remove what the build made
.PHONY: clean
clean:
	rm -rf _output/bin

## help: list the targets
.PHONY: help
help:
	@sed -n 's/^## \([a-z-]*\): \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | awk -F'\t' '{printf "  make %-12s %s\n", $$1, $$2}'
