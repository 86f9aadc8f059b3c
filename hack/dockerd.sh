#!/usr/bin/env bash
# Builds one version of dockerd.exe from the module hack/tools/NAME into _output/tools/windows, with Go's standard library patched for Wine: OVERLAY is
# the file that package rig writes (rig.Overlay). moby's modules without a go.mod declare no Go version, and would be compiled as Go 1.16.
set -euo pipefail
cd "$(dirname "$0")/.."
case ${1:-} in
dockerd-25) version=25.0.6 package=github.com/docker/docker language=go1.21 ;;
dockerd-28) version=28.5.2 package=github.com/docker/docker language=go1.24 ;;
dockerd-29) version=29.0.0-beta.24 package=github.com/moby/moby/v2 language=go1.26 ;;
*) echo "dockerd.sh: ${1:-}: want dockerd-25, dockerd-28 or dockerd-29" >&2; exit 2 ;;
esac
[ -f "${2:-}" ] || { echo "dockerd.sh: ${2:-}: want a file for go build -overlay after the name" >&2; exit 2; }
GOOS=windows GOARCH=amd64 CGO_ENABLED=0 nice -n 10 go build -C "hack/tools/$1" -trimpath -overlay "$2" -gcflags "$package/...=-lang=$language" \
	-ldflags "-X $package/dockerversion.Version=$version" -o "../../../_output/tools/windows/$1.exe" "$package/cmd/dockerd"
# moby's own builds embed a manifest (hack/make/.mkwinres), without which Windows reports version 6.2. Here the manifest is a file beside the program.
cat >"_output/tools/windows/$1.exe.manifest" <<'XML'
<?xml version="1.0" encoding="UTF-8" standalone="yes"?>
<assembly xmlns="urn:schemas-microsoft-com:asm.v1" manifestVersion="1.0">
  <compatibility xmlns="urn:schemas-microsoft-com:compatibility.v1">
    <application><supportedOS Id="{8e0f7a12-bfb3-4fe8-b9a5-48fd50a15a9a}"/></application>
  </compatibility>
</assembly>
XML
