package san

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/command"
	"github.com/winkube/winkube/pkg/volume/paths"
)

// Exit codes of iscsiadm(8).
const (
	exitNoSession     = 2
	exitNoDriver      = 12
	exitSessionExists = 15
	exitNoDaemon      = 20
	exitNoRecord      = 21
	exitNotInSysfs    = 22
	exitAuth          = 24
)

// secrets are what CHAP needs: settings of open-iscsi's records.
type secrets struct {
	discovery, session []setting
}

// setting is one line of a record.
type setting struct{ name, value string }

// discoveryKeys and sessionKeys are the keys of a Secret that CHAP uses, as upstream has them. The first two of each are required.
var (
	discoveryKeys = []string{"discovery.sendtargets.auth.username", "discovery.sendtargets.auth.password", "discovery.sendtargets.auth.username_in", "discovery.sendtargets.auth.password_in"}
	sessionKeys   = []string{"node.session.auth.username", "node.session.auth.password", "node.session.auth.username_in", "node.session.auth.password_in"}
)

// secrets reads what CHAP needs from the volume's Secret.
func (k *Kind) secrets(ctx context.Context, d described) (secrets, error) {
	if !d.chapDiscovery && !d.chapSession {
		return secrets{}, nil
	}
	secret, err := k.parts.Objects.Secret(ctx, d.secret.Namespace, d.secret.Name)
	if err != nil {
		return secrets{}, fmt.Errorf("couldn't get secret %s/%s: %w", d.secret.Namespace, d.secret.Name, err)
	}
	where := "Secret " + d.secret.Namespace + "/" + d.secret.Name
	var in secrets
	if d.chapDiscovery {
		in.discovery, err = settings(where, secret, discoveryKeys)
	}
	if err == nil && d.chapSession {
		in.session, err = settings(where, secret, sessionKeys)
	}
	return in, err
}

// longestSecret is AUTH_STR_MAX_LEN of open-iscsi without its final zero.
const longestSecret = 255

// settings returns the settings for CHAP by the keys of a Secret. Errors do not show values. It is pure.
func settings(where string, secret *v1.Secret, keys []string) ([]setting, error) {
	out := []setting{{strings.TrimSuffix(keys[0], "username") + "authmethod", "CHAP"}}
	for i, key := range keys {
		value := strings.TrimRight(string(secret.Data[key]), "\r\n")
		switch {
		case value == "" && i < 2:
			return nil, fmt.Errorf("%s has no key %s, or it is empty: CHAP needs %s and %s", where, key, keys[0], keys[1])
		case value == "":
			continue
		case len(value) > longestSecret || value != strings.TrimSpace(value) || strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r == 0x7f }):
			return nil, fmt.Errorf("%s: the value of %s cannot be written into a record of open-iscsi: want at most %d characters, no control characters, and no space at its ends", where, key, longestSecret)
		}
		out = append(out, setting{key, value})
	}
	return out, nil
}

// adm runs iscsiadm.
func (k *iscsi) adm(ctx context.Context, args ...string) ([]byte, error) {
	out, err := k.run.Run(ctx, nil, "iscsiadm", args...)
	return out, explain(err)
}

// explain adds what would be right to an error of iscsiadm.
func explain(err error) error {
	hint := ""
	switch {
	case err == nil:
		return nil
	case errors.Is(err, command.ErrNotFound):
		hint = "iscsiadm on this node: install open-iscsi (Debian, Ubuntu, SUSE) or iscsi-initiator-utils (RHEL)"
	case code(err) == exitNoDriver || strings.Contains(err.Error(), "Could not load transport tcp"):
		hint = "the kernel's module iscsi_tcp (modprobe iscsi_tcp)"
	case code(err) == exitNoDaemon:
		hint = "iscsid running (systemctl enable --now iscsid)"
	case code(err) == exitAuth:
		hint = "CHAP user and password, and the name of the initiator (/etc/iscsi/initiatorname.iscsi), as the target has them"
	default:
		return err
	}
	return fmt.Errorf("%w; %w: %s", err, errHint, hint)
}

// errHint is in errors whose cause is known.
var errHint = errors.New("want")

// code returns the exit code of a program; 0: it has not run.
func code(err error) int {
	var exit *command.ExitError
	if errors.As(err, &exit) {
		return exit.Code
	}
	return 0
}

// unless returns err unless it is one of these exit codes.
func unless(err error, codes ...int) error {
	if slices.Contains(codes, code(err)) {
		return nil
	}
	return err
}

// announce implements protocol. A record of a discovery that is there already is an administrator's, unless an earlier agent of ours has made it.
func (k *iscsi) announce(r *record, portal string) {
	if k.system.discoveryRecord(portal) == "" && !slices.Contains(r.Finds, portal) {
		r.Finds = append(r.Finds, portal)
	}
}

// settle implements protocol.
func (k *iscsi) settle(r *record) {
	r.Finds = slices.DeleteFunc(r.Finds, func(portal string) bool { return k.system.discoveryRecord(portal) == "" })
}

// connect implements protocol: it logs in to a portal.
//
// Secrets go into the records of open-iscsi, which only root can read, and never into arguments, which every user of the host can read. Upstream's
// kubelet keeps what discovery finds, and so has iscsid log in to targets of others at the next boot where open-iscsi's default is "automatic".
func (k *iscsi) connect(ctx context.Context, r *record, portal string, in secrets) error {
	if err := k.makeIface(ctx, r); err != nil {
		return err
	}
	tag, err := k.discover(ctx, r, portal, in.discovery)
	if err != nil {
		return err
	}
	node := []string{"-m", "node", "-T", r.IQN, "-p", portal + tag, "-I", r.Iface}
	if _, err := k.adm(ctx, append(node, "-o", "new")...); err != nil {
		return err
	}
	err = k.logIn(ctx, r, portal, node, in.session)
	if err != nil {
		if wrong := k.delete(context.WithoutCancel(ctx), node...); wrong != nil {
			klog.ErrorS(wrong, "Cannot delete the record of a target to which this node could not log in", "target", r.IQN, "portal", portal)
		}
	}
	return err
}

// logIn configures the record of a portal and logs in by it.
func (k *iscsi) logIn(ctx context.Context, r *record, portal string, node []string, chap []setting) error {
	// The host must not log in when it boots, before the agent knows who needs the disk.
	if _, err := k.adm(ctx, append(node, "-o", "update", "-n", "node.startup", "-v", "manual")...); err != nil {
		return err
	}
	// Only the volume's disk is looked for, not all those of the target. Versions before 2.0.874 do not have this.
	if _, err := k.adm(ctx, append(node, "-o", "update", "-n", "node.session.scan", "-v", "manual")...); err != nil {
		klog.InfoS("This open-iscsi shows the node all disks of a target", "target", r.IQN, "err", err)
	}
	if len(chap) > 0 {
		path, err := k.system.nodeRecord(r, portal)
		if err == nil {
			err = k.system.edit(path, chap)
		}
		if err != nil {
			return err
		}
	}
	_, err := k.adm(ctx, append(node, "--login")...)
	return unless(err, exitSessionExists)
}

// makeIface makes the interface of a volume that has its own name of the initiator: a copy of the one that the volume names.
func (k *iscsi) makeIface(ctx context.Context, r *record) error {
	if r.Initiator == "" {
		return nil
	}
	from, err := k.adm(ctx, "-m", "iface", "-I", r.From, "-o", "show")
	if err != nil {
		return err
	}
	have, err := k.adm(ctx, "-m", "iface", "-I", r.Iface, "-o", "show")
	if err != nil {
		if _, err := k.adm(ctx, "-m", "iface", "-I", r.Iface, "-o", "new"); err != nil {
			return err
		}
		if have, err = k.adm(ctx, "-m", "iface", "-I", r.Iface, "-o", "show"); err != nil {
			return err
		}
	}
	for _, s := range ifaceChanges(from, have, r.Initiator) {
		if _, err := k.adm(ctx, "-m", "iface", "-I", r.Iface, "-o", "update", "-n", s.name, "-v", s.value); err != nil {
			return err
		}
	}
	return nil
}

// ifaceChanges returns what makes the interface have a copy of from with that name of the initiator. It is pure.
func ifaceChanges(from, have []byte, initiator string) (out []setting) {
	want, is := parseShow(from), map[string]string{}
	for _, s := range parseShow(have) {
		is[s.name] = s.value
	}
	const name = "iface.initiatorname"
	want = slices.DeleteFunc(want, func(s setting) bool { return s.name == name || s.name == "iface.iscsi_ifacename" })
	for _, s := range append(want, setting{name, initiator}) {
		if is[s.name] != s.value {
			out = append(out, s)
		}
	}
	return out
}

// parseShow reads what iscsiadm shows of a record. Settings without a value are left out.
func parseShow(out []byte) (all []setting) {
	for line := range strings.Lines(string(out)) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), " = ")
		if ok && !strings.HasPrefix(name, "#") && value != "<empty>" {
			all = append(all, setting{name, value})
		}
	}
	return all
}

// discover asks a portal for its targets and returns ",TAG" of the one that is wanted, "" if the portal names it by other addresses only. The records of
// open-iscsi get nothing of it.
func (k *iscsi) discover(ctx context.Context, r *record, portal string, chap []setting) (tag string, err error) {
	args := []string{"-m", "discoverydb", "-t", "sendtargets", "-p", portal, "-I", r.Iface}
	turn, err := k.portals.Enter(ctx, portal)
	if err != nil {
		return "", err
	}
	defer turn.Release()
	if slices.Contains(r.Finds, portal) { // else the record is an administrator's
		if _, err := k.adm(ctx, append(args, "-o", "new")...); err != nil {
			return "", err
		}
		defer func() {
			if wrong := k.delete(context.WithoutCancel(ctx), args...); wrong != nil {
				klog.ErrorS(wrong, "Cannot delete the record of a discovery", "portal", portal)
			}
		}()
	}
	if len(chap) > 0 {
		if err := k.system.edit(k.system.discoveryRecord(portal), chap); err != nil {
			return "", err
		}
	}
	out, err := k.adm(ctx, append(args, "-o", "nonpersistent", "--discover")...)
	if err != nil && (code(err) != exitNoRecord || errors.Is(err, errHint)) {
		return "", err
	}
	tag, found := announced(out, portal, r.IQN)
	if !found {
		return "", errors.Join(fmt.Errorf("the portal does not announce target %s to this node: want the name of a target there, and this node's initiator (/etc/iscsi/initiatorname.iscsi) in the target's access list", r.IQN), err)
	}
	return tag, nil
}

// announced looks for a target in the output of a discovery: lines "10.0.0.1:3260,1 iqn...". It is pure.
func announced(out []byte, portal, iqn string) (tag string, found bool) {
	for line := range strings.Lines(string(out)) {
		where, name, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok || name != iqn {
			continue
		}
		found = true
		if address, group, ok := strings.Cut(where, ","); ok && samePortal(address, portal) && isNumber(group) {
			return "," + group, true
		}
	}
	return "", found
}

func isNumber(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool { return r < '0' || r > '9' })
}

// disconnect implements protocol: it logs out. The session is named by its number, because its record may be gone.
func (k *iscsi) disconnect(ctx context.Context, r *record, p path) error {
	_, err := k.adm(ctx, "-m", "session", "-r", p.session, "--logout")
	return unless(err, exitNoSession, exitNoRecord, exitNotInSysfs)
}

// forget implements protocol: it deletes records of portals that have no session any more, and the volume's own interface.
func (k *iscsi) forget(ctx context.Context, r *record, shared bool) error {
	for _, portal := range r.Finds {
		if err := k.endDiscovery(ctx, r, portal); err != nil {
			return err
		}
	}
	if shared {
		return nil
	}
	now, err := k.look(r)
	if err != nil {
		return err
	}
	for _, p := range now {
		if p.session == "" && slices.Contains(r.Ours, p.name) {
			if err := k.delete(ctx, "-m", "node", "-T", r.IQN, "-p", p.name, "-I", r.Iface); err != nil {
				return err
			}
		}
	}
	if r.Initiator == "" || r.Iface == r.From || k.system.find("ifaces", r.Iface) == "" {
		return nil
	}
	return k.delete(ctx, "-m", "iface", "-I", r.Iface)
}

// endDiscovery deletes the record of a discovery that a killed agent has left.
func (k *iscsi) endDiscovery(ctx context.Context, r *record, portal string) error {
	turn, err := k.portals.Enter(ctx, portal)
	if err != nil {
		return err
	}
	defer turn.Release()
	if k.system.discoveryRecord(portal) == "" {
		return nil
	}
	return k.delete(ctx, "-m", "discoverydb", "-t", "sendtargets", "-p", portal, "-I", r.From)
}

// delete deletes a record, which may be gone, with iscsiadm itself.
func (k *iscsi) delete(ctx context.Context, args ...string) error {
	_, err := k.adm(ctx, append(args, "-o", "delete")...)
	if errors.Is(err, command.ErrNotFound) {
		return nil
	}
	return unless(err, exitNoRecord)
}

// addressOf splits a portal as open-iscsi names its files: the address without brackets, and the port.
func addressOf(portal string) (host, port string) {
	if a, err := netip.ParseAddrPort(portal); err == nil && a.Addr().Is6() {
		i := strings.LastIndexByte(portal, ':')
		return portal[1 : i-1], portal[i+1:]
	}
	host, port, _ = strings.Cut(portal, ":")
	return host, port
}

// find returns the file of that name below the directories that may have open-iscsi's records; "": there is none.
func (s *System) find(elements ...string) string {
	for _, db := range s.Databases {
		if path := filepath.Join(append([]string{db}, elements...)...); paths.Exists(path) {
			return path
		}
	}
	return ""
}

// discoveryRecord returns the record of a portal's discovery; "": there is none.
func (s *System) discoveryRecord(portal string) string {
	host, port := addressOf(portal)
	return s.find("send_targets", host+","+port, "st_config")
}

// nodeRecord returns the record of a portal of a target: a file for each interface in the directory ADDRESS,PORT,TAG, or a file of that name.
func (s *System) nodeRecord(r *record, portal string) (string, error) {
	dir := s.find("nodes", r.IQN)
	if dir == "" {
		return "", fmt.Errorf("cannot find open-iscsi's record of %s: want it in %s", r.IQN, strings.Join(s.Databases, " or "))
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", fmt.Errorf("cannot find open-iscsi's record of %s: %w", r.IQN, err)
	}
	host, port := addressOf(portal)
	for _, e := range entries {
		if e.Name() != host+","+port && !strings.HasPrefix(e.Name(), host+","+port+",") {
			continue
		}
		file := filepath.Join(dir, e.Name())
		if e.IsDir() {
			file = filepath.Join(file, r.Iface)
		}
		if fi, err := os.Stat(file); err == nil && fi.Mode().IsRegular() {
			return file, nil
		}
	}
	return "", fmt.Errorf("cannot find open-iscsi's record of %s at %s in %s", r.IQN, portal, dir)
}

// edit changes settings of a record of open-iscsi. The directory of a record has nothing but records, so that the new file is written elsewhere.
func (s *System) edit(path string, settings []setting) error {
	i := slices.IndexFunc(s.Databases, func(db string) bool { return strings.HasPrefix(path, db+string(filepath.Separator)) })
	if i < 0 {
		return fmt.Errorf("cannot write CHAP's settings: open-iscsi has no record for them in %s", strings.Join(s.Databases, " or "))
	}
	have, err := os.ReadFile(path)
	if err == nil {
		err = paths.Replace(path, join(s.Databases[i], unfinished), edited(have, settings))
	}
	if err != nil {
		return fmt.Errorf("cannot write CHAP's settings: %w", err)
	}
	return nil
}

// edited returns a record with these settings instead of those that it has of the same names. It is pure.
func edited(record []byte, settings []setting) []byte {
	var out, end bytes.Buffer
	for line := range bytes.Lines(record) {
		name, _, _ := strings.Cut(string(line), " ")
		switch {
		case bytes.HasPrefix(line, []byte("# END RECORD")):
			end.Write(line)
		case !slices.ContainsFunc(settings, func(s setting) bool { return s.name == name }):
			out.Write(line)
		}
	}
	for _, s := range settings {
		fmt.Fprintf(&out, "%s = %s\n", s.name, s.value)
	}
	return append(out.Bytes(), end.Bytes()...)
}
