# Sourced: step NAME COMMAND... runs a command and prints one line with its time. On failure it prints what failed, the end of its log and the log's
# path. Each step adds a line with the processor time of its processes to the account, which `account` prints.

# As hack/build.sh builds, so that checks and tests use the packages that it compiled, in any checkout.
[[ " $(go env GOFLAGS) " == *" -trimpath "* ]] || export GOFLAGS="$(go env GOFLAGS) -trimpath"
export CGO_ENABLED=0

logs=_output/logs/$(basename "$0" .sh)
mkdir -p "$logs"
: >"$logs/account"

step() {
	local name=$1 start=$SECONDS log
	log=$logs/${1// /-}.log
	shift
	printf '[%4d s] %-34s ' "$SECONDS" "$name"
	local code=0
	set +e # bash ignores -e for a command in a condition
	measured "$name" "$@" >"$log" 2>&1
	code=$?
	set -e
	if [ $code = 0 ]; then
		printf 'ok    %4d s\n' $((SECONDS - start))
		return
	fi
	printf 'FAIL  %4d s\n' $((SECONDS - start))
	grep -E -A25 -- '--- FAIL|^panic:|WARNING: DATA RACE|^FAIL|\[build failed\]' "$log" | grep -vE '^(ok|\?) ' | head -150 || true
	echo "--- end of the log:"
	grep -vE '^(ok|\?) ' "$log" | tail -25 || true # skip packages that passed
	echo "the whole log: $log"
	exit 1
}

# measured NAME COMMAND... runs a command until its first failing line, and adds it to the account.
measured() {
	local name=$1 start=$SECONDS code=0 TIMEFORMAT='%R %U %S' times=$logs/times.$BASHPID
	shift
	{
		time {
			(
				set -e
				"$@"
			) 2>&3 3>&-
		}
	} 3>&2 2>"$times"
	code=$?
	printf '%s\t%s\t%s\n' "$start" "$(cat "$times")" "$name" >>"$logs/account"
	rm -f "$times"
	return $code
}

# account prints when each part began, how long it took, and how much processor time its processes and the whole machine used.
account() {
	printf '\n%-44s %8s %8s %12s\n' 'seconds' began took 'processors*'
	sort -n "$logs/account" | awk -F'\t' '{split($2, t, " "); printf "%-44s %8d %8.0f %12.0f\n", $3, $1, t[1], t[2] + t[3]}'
	printf '%-44s %8s %8d %12d\n' "all, by all of the machine's processes" '' "$SECONDS" $(($(busy) - busy_before))
	echo "* of a part's own processes. Wine's server, engines, containers and other work on this machine count only in the last line."
}

# busy prints how many seconds the machine's processors have worked since boot: user, nice, system, irq, softirq of proc_stat(5).
busy() { awk -v hz="$(getconf CLK_TCK)" '/^cpu / {printf "%d\n", ($2 + $3 + $4 + $7 + $8) / hz}' /proc/stat; }
busy_before=$(busy)

# remove_cluster_at_end has the end of the script remove the cluster, and fail if anything of it remains. A cluster that runs already stays.
remove_cluster_at_end() {
	cluster_ran=yes
	if grep -qw down <<<"$(go run ./hack/cluster status)"; then cluster_ran=no; fi
	trap 'finish $?' EXIT
}
finish() {
	local code=$1
	[ -z "${beside-}" ] || end_beside
	[ $cluster_ran = yes ] || go run ./hack/cluster down || code=1
	exit "$code"
}

# start_beside COMMAND... runs a command beside the rest of the script, with its output in a log; join_beside waits for it and prints that.
start_beside() {
	set -m # its own process group
	"$@" >"$logs/beside.log" 2>&1 &
	beside=$!
	set +m
}
join_beside() {
	local code=0
	wait "$beside" || code=$?
	beside=
	cat "$logs/beside.log"
	return $code
}
end_beside() { # after a failure
	echo "what ran beside it is ended; its log: $logs/beside.log"
	kill -TERM -- "-$beside" 2>/dev/null || true
	wait "$beside" 2>/dev/null || true
}

# tested ARGUMENTS... runs go test -v with them. At the end it prints again what failed, with its output, and then each failed test's messages alone:
# what was said long ago is hard to find, and so is one line among a thousand.
build_tested() { go build -C hack/tools/gotestsum -o ../../../_output/tools/gotestsum gotest.tools/gotestsum; }
tested() {
	local events=$logs/events.$BASHPID code=0
	_output/tools/gotestsum --format=standard-verbose --hide-summary=skipped --jsonfile="$events" -- -count=1 "$@" || code=$?
	[ $code = 0 ] || go run ./hack/failures "$events"
	rm -f "$events"
	return $code
}
