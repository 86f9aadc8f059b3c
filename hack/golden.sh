#!/usr/bin/env bash
# Rewrites the golden files of every package whose tests know -update.
set -euo pipefail
cd "$(dirname "$0")/.."
for dir in $(grep -rlE 'flag\.Bool\("update"' --include='*_test.go' pkg cmd test | xargs -rn1 dirname | sort -u); do
	go test "./$dir" -update
done
git status --short
