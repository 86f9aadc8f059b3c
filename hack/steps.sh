# Sourced: step NAME COMMAND... runs a command, prints one line with its time, and on failure what failed, the end of its log and where the rest is.
logs=_output/logs/$(basename "$0" .sh)
mkdir -p "$logs"

step() {
	local name=$1 start=$SECONDS log
	log=$logs/${1// /-}.log
	shift
	printf '[%4d s] %-34s ' "$SECONDS" "$name"
	local code=0
	set +e # a command in a condition would not stop at its first failing line
	(set -e; "$@") >"$log" 2>&1
	code=$?
	set -e
	if [ $code = 0 ]; then
		printf 'ok    %4d s\n' $((SECONDS - start))
		return
	fi
	printf 'FAIL  %4d s\n' $((SECONDS - start))
	grep -E -A25 -- '--- FAIL|^panic:|WARNING: DATA RACE|^FAIL|\[build failed\]' "$log" | grep -vE '^(ok|\?) ' | head -150 || true
	echo "--- the end of its log:"
	grep -vE '^(ok|\?) ' "$log" | tail -25 || true # passed packages say nothing
	echo "the whole log: $log"
	exit 1
}
