package san_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/winkube/winkube/pkg/command/commandtest"
)

// options are arguments of iscsiadm: -x VALUE, and flags.
type options map[string]string

func parse(args []string) options {
	o := options{}
	for i := 0; i < len(args); i++ {
		if strings.HasPrefix(args[i], "--") || i+1 == len(args) {
			o[args[i]] = "yes"
			continue
		}
		o[args[i]] = args[i+1]
		i++
	}
	return o
}

// iscsiadm is iscsiadm(8) with iscsid, as far as the kinds use it. Its records are files, as open-iscsi has them.
func (w *world) iscsiadm(_ []byte, args []string) ([]byte, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, secret := range []string{"s3cret", "disc0very"} {
		if slices.ContainsFunc(args, func(a string) bool { return strings.Contains(a, secret) }) {
			w.t.Errorf("a secret is an argument: %q", args)
		}
	}
	o := parse(args)
	if iface := o["-I"]; iface != "" && iface != "default" && o["-o"] != "new" {
		if _, err := os.Stat(filepath.Join(w.dir, "iscsi/ifaces", iface)); err != nil {
			return nil, commandtest.Exit(6, "iSCSI ERROR: Failed to open "+iface+" using read mode")
		}
	}
	switch o["-m"] {
	case "iface":
		return w.iface(o)
	case "discoverydb":
		return w.discovery(o)
	case "node":
		return w.node(o)
	case "session":
		if w.sessions[o["-r"]] == nil || o["--logout"] == "" {
			return nil, commandtest.Exit(22, "iscsiadm: Could not get session info for sid "+o["-r"])
		}
		w.end(o["-r"])
		return nil, nil
	}
	return nil, commandtest.Exit(7, fmt.Sprintf("iscsiadm: bad usage %q", args))
}

func (w *world) iface(o options) ([]byte, error) {
	file := filepath.Join(w.dir, "iscsi/ifaces", o["-I"])
	switch o["-o"] {
	case "new":
		return nil, os.WriteFile(file, []byte("# BEGIN RECORD\niface.iscsi_ifacename = "+o["-I"]+"\niface.transport_name = tcp\n# END RECORD\n"), 0o600)
	case "delete":
		if os.Remove(file) != nil {
			return nil, commandtest.Exit(7, "iscsiadm: Could not delete iface "+o["-I"]+": invalid parameter")
		}
		return nil, nil
	case "update":
		return nil, change(file, o["-n"], o["-v"])
	case "show":
		if o["-I"] == "default" {
			return []byte("# BEGIN RECORD 2.1.8\niface.iscsi_ifacename = default\niface.transport_name = tcp\niface.mtu = 9000\niface.initiatorname = <empty>\n# END RECORD\n"), nil
		}
		return os.ReadFile(file)
	}
	return nil, commandtest.Exit(7, "iscsiadm: bad op")
}

// change sets a line of a record.
func change(file, name, value string) error {
	b, err := os.ReadFile(file)
	if err != nil {
		return commandtest.Exit(21, "iscsiadm: no records found")
	}
	var out []string
	for line := range strings.Lines(string(b)) {
		if !strings.HasPrefix(line, name+" = ") && !strings.HasPrefix(line, "# END") {
			out = append(out, line)
		}
	}
	return os.WriteFile(file, []byte(strings.Join(out, "")+name+" = "+value+"\n# END RECORD\n"), 0o600)
}

// read returns a setting of a record.
func read(file, name string) string {
	b, _ := os.ReadFile(file)
	for line := range strings.Lines(string(b)) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), name+" = "); ok {
			return value
		}
	}
	return ""
}

func (w *world) discovery(o options) ([]byte, error) {
	host, port, _ := strings.Cut(o["-p"], ":")
	dir := filepath.Join(w.dir, "iscsi/send_targets", host+","+port)
	file := filepath.Join(dir, "st_config")
	switch {
	case o["--discover"] != "" && o["-o"] == "nonpersistent":
		p := w.portals[o["-p"]]
		if p == nil || p.off {
			return nil, commandtest.Exit(8, "iscsiadm: connection login retries (reopen_max) 5 exceeded")
		}
		if p.chap[0] != "" && (read(file, "discovery.sendtargets.auth.authmethod") != "CHAP" || read(file, "discovery.sendtargets.auth.username") != p.chap[0] || read(file, "discovery.sendtargets.auth.password") != p.chap[1]) {
			return nil, commandtest.Exit(24, "iscsiadm: Login failed to authenticate with target")
		}
		var out strings.Builder
		for address := range w.portals {
			for name := range p.targets {
				fmt.Fprintf(&out, "%s,1 %s\n", address, name)
			}
		}
		return []byte(out.String()), nil
	case o["-o"] == "new":
		return nil, errorsOf(os.MkdirAll(dir, 0o700), os.WriteFile(file, []byte("# BEGIN RECORD\ndiscovery.startup = manual\n# END RECORD\n"), 0o600))
	case o["-o"] == "delete":
		return nil, os.RemoveAll(dir)
	}
	return nil, commandtest.Exit(7, "iscsiadm: bad op")
}

func errorsOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func (w *world) node(o options) ([]byte, error) {
	address, tag, tagged := strings.Cut(o["-p"], ",")
	host, port, _ := strings.Cut(address, ":")
	file := filepath.Join(w.dir, "iscsi/nodes", o["-T"], host+","+port+",1", o["-I"])
	if tagged && tag != "1" {
		return nil, commandtest.Exit(21, "iscsiadm: no records found")
	}
	switch {
	case o["-o"] == "new":
		if !tagged {
			return nil, commandtest.Exit(7, "iscsiadm: this fake wants the tag")
		}
		return nil, errorsOf(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte("# BEGIN RECORD 2.1.8\nnode.name = "+o["-T"]+"\nnode.startup = automatic\nnode.session.auth.authmethod = None\n# END RECORD\n"), 0o600))
	case o["-o"] == "update":
		return nil, change(file, o["-n"], o["-v"])
	case o["-o"] == "delete":
		if _, err := os.Stat(file); err != nil {
			return nil, commandtest.Exit(21, "iscsiadm: No records found")
		}
		return nil, os.RemoveAll(filepath.Dir(file))
	case o["--login"] != "":
		return nil, w.login(o["-T"], address, o["-I"], file)
	}
	return nil, commandtest.Exit(7, "iscsiadm: bad op")
}

func (w *world) login(iqn, address, iface, file string) error {
	if _, err := os.Stat(file); err != nil {
		return commandtest.Exit(21, "iscsiadm: No records found")
	}
	if read(file, "node.startup") != "manual" || read(file, "node.session.scan") != "manual" {
		w.t.Errorf("the record of %s has startup %q and scan %q", iqn, read(file, "node.startup"), read(file, "node.session.scan"))
	}
	p := w.portals[address]
	if p == nil || p.off {
		return commandtest.Exit(8, "iscsiadm: initiator reported error (8 - connection timed out)")
	}
	want := p.sessions[iqn]
	if want[0] != "" && (read(file, "node.session.auth.authmethod") != "CHAP" || read(file, "node.session.auth.username") != want[0] || read(file, "node.session.auth.password") != want[1]) {
		return commandtest.Exit(24, "iscsiadm: initiator reported error (24 - iSCSI login failed due to authorization failure)")
	}
	for _, s := range w.sessions {
		if s.iqn == iqn && s.portal == address && s.iface == iface {
			return commandtest.Exit(15, "iscsiadm: session exists")
		}
	}
	id := fmt.Sprint(w.nextID)
	w.nextID++
	s := &session{id: id, iqn: iqn, portal: address, iface: iface, host: fmt.Sprint(30 + w.nextID)}
	w.sessions[id] = s
	host, port, _ := strings.Cut(address, ":")
	dir := "devices/platform/host" + s.host + "/session" + id
	w.set(dir+"/iscsi_session/session"+id+"/targetname", iqn)
	w.set(dir+"/iscsi_session/session"+id+"/state", "LOGGED_IN")
	w.set(dir+"/iscsi_session/session"+id+"/ifacename", iface)
	w.set(dir+"/iscsi_session/session"+id+"/target_id", "0")
	w.lay(dir+"/iscsi_session/session"+id+"/device", dir)
	w.lay("class/iscsi_session/session"+id, dir+"/iscsi_session/session"+id)
	w.set("class/iscsi_connection/connection"+id+":0/persistent_address", host)
	w.set("class/iscsi_connection/connection"+id+":0/persistent_port", port)
	return nil
}

// end ends a session with its devices.
func (w *world) end(id string) {
	s := w.sessions[id]
	for _, device := range slices.Clone(s.devices) {
		if used, _ := w.claims(device); used {
			w.t.Errorf("the session of %s was ended while it is in use", device)
		}
		w.drop(device)
	}
	w.gone("sys/class/iscsi_session/session" + id)
	w.gone("sys/class/iscsi_connection/connection" + id + ":0")
	delete(w.sessions, id)
}
