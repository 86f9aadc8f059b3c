#!/bin/sh
# systemctl of a host without systemd: starts and stops what its unit files say. It knows EnvironmentFile=, ExecStart= and drop-ins, and what the scripts
# of our packages request.
action= units= now=
while [ $# -gt 0 ]; do
	case $1 in
	-p) shift ;; # its value
	--now) now=1 ;;
	-q | --quiet) exec >/dev/null ;;
	-*) ;;
	*) [ -n "$action" ] && units="$units $1" || action=$1 ;;
	esac
	shift
done
[ "$action$now" != disable1 ] || action=stop
case $action in
daemon-reload | enable | disable) exit 0 ;;
esac

# of sets the variables of a unit.
of() {
	unit=${1%.service}
	pid=/run/$unit.pid
	for dir in /etc/systemd/system /usr/lib/systemd/system; do
		[ ! -f "$dir/$unit.service" ] || return 0
	done
	return 1
}
text() { cat "$dir/$unit.service" "/etc/systemd/system/$unit.service.d/"*.conf 2>/dev/null; }
alive() { [ -f "$pid" ] && kill -0 "$(cat "$pid")" 2>/dev/null; }
line() { text | sed -n 's/^ExecStart=\(.\)/\1/p' | tail -n 1; }
start() {
	alive && return
	script=
	for file in $(text | sed -n 's/^EnvironmentFile=-//p'); do
		[ -f "$file" ] && script="$script . $file;"
	done
	setsid sh -c "$script exec $(line)" >>"/var/log/$unit.log" 2>&1 </dev/null &
	echo $! >"$pid"
}
stop() {
	alive || return 0
	kill -TERM "$(cat "$pid")"
	while alive; do sleep 0.02; done
	rm -f "$pid"
}
for name in $units; do
	[ "$name" = "${name%.socket}" ] || continue # a program here listens itself
	if ! of "$name"; then
		[ "$action" != show ] || continue
		echo "Unit $unit.service could not be found."
		exit 4
	fi
	case $action in
	start) start ;;
	stop) stop ;;
	restart) stop && start ;;
	try-restart) ! alive || { stop && start; } ;;
	is-enabled) echo enabled ;;
	is-active) alive && echo active || { echo inactive; exit 3; } ;;
	status) echo "Loaded: loaded ($dir/$unit.service; enabled)" ;;
	show) echo "ExecStart={ path=$(line | cut -d ' ' -f 1) ; argv[]=$(line) ; ignore_errors=no }" ;;
	*) echo "systemctl $action: not known here" >&2; exit 1 ;;
	esac
done
