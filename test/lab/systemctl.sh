#!/bin/sh
# systemctl of a host without systemd: starts and stops what its unit files say. It knows EnvironmentFile=, ExecStart= and drop-ins.
action=$1
unit=${2%.service}
dir=/etc/systemd/system
pid=/run/$unit.pid
case $action in
daemon-reload | enable | disable) exit 0 ;;
esac
if [ ! -f "$dir/$unit.service" ]; then
	echo "Unit $unit.service could not be found."
	exit 4
fi
alive() { [ -f "$pid" ] && kill -0 "$(cat "$pid")" 2>/dev/null; }
start() {
	alive && return
	files=$(cat "$dir/$unit.service" "$dir/$unit.service.d/"*.conf 2>/dev/null | sed -n 's/^EnvironmentFile=-//p')
	line=$(cat "$dir/$unit.service" "$dir/$unit.service.d/"*.conf 2>/dev/null | sed -n 's/^ExecStart=\(.\)/\1/p' | tail -n 1)
	script=
	for file in $files; do
		[ -f "$file" ] && script="$script . $file;"
	done
	setsid sh -c "$script exec $line" >>"/var/log/$unit.log" 2>&1 </dev/null &
	echo $! >"$pid"
}
stop() {
	alive || return 0
	kill -TERM "$(cat "$pid")"
	while alive; do sleep 0.02; done
	rm -f "$pid"
}
case $action in
start) start ;;
stop) stop ;;
restart) stop && start ;;
is-enabled) echo enabled ;;
is-active) alive && echo active || { echo inactive; exit 3; } ;;
status) echo "Loaded: loaded ($dir/$unit.service; enabled)" ;;
*) echo "systemctl $action: not known here" >&2; exit 1 ;;
esac
