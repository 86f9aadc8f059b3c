#!/usr/bin/env bash
# Parses the PowerShell scripts of build/windows and the commands of docs/guides/windows.md, and proves that the parser reports an error. Needs node and npm.
set -euo pipefail
cd "$(dirname "$0")/.."

for program in node npm; do
	if ! command -v $program >/dev/null; then
		echo "powershell.sh: $program is missing, so the PowerShell scripts cannot be parsed: run hack/ensure-packages.sh powershell as root" >&2
		exit 1
	fi
done

dir=_output/tools/powershell
mkdir -p $dir
cp hack/powershell/* $dir/
[ -d $dir/node_modules ] || npm ci --prefix $dir --no-audit --no-fund --ignore-scripts >/dev/null
printf 'if ($a { 1 }\n' >$dir/wrong.ps1
if node $dir/check.mjs $dir/wrong.ps1 >/dev/null; then
	echo "the parser reports no error in $dir/wrong.ps1: check hack/powershell/check.mjs"
	exit 1
fi
awk '/^```/ { inside = $0 == "```powershell"; print ""; next } { print inside ? $0 : "" }' docs/guides/windows.md >$dir/windows.md.ps1 # lines keep their numbers
node $dir/check.mjs build/windows/*.ps1 $dir/windows.md.ps1
