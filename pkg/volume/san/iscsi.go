package san

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/command"
	"github.com/winkube/winkube/pkg/volume"
	"github.com/winkube/winkube/pkg/volume/turns"
)

const iscsiPlugin = "kubernetes.io/iscsi"

// iscsi reaches disks by TCP, through the host's open-iscsi.
type iscsi struct {
	run     command.Runner
	system  System
	portals turns.Turns[string] // discoveries: open-iscsi has one record for each portal
}

func (*iscsi) plugin() string { return iscsiPlugin }

func (*iscsi) has(v volume.Volume) bool {
	if v.PV != nil {
		return v.PV.Spec.ISCSI != nil
	}
	return v.Spec.ISCSI != nil
}

// described is a disk as a volume names it, with what belongs to the volume alone.
type described struct {
	record record
	spec   string // name of the volume's directory in that of the pod
	secret *v1.SecretReference
	// Which of the Secret's keys are used.
	chapDiscovery, chapSession bool
}

var (
	// Names of targets and initiators (RFC 7143, section 4.2.7): they become names of files and arguments of programs.
	nameForm   = regexp.MustCompile(`^(iqn\.\d{4}-\d{2}\.[A-Za-z0-9][A-Za-z0-9.:_-]*|eui\.[0-9A-Fa-f]{16}|naa\.[0-9A-Fa-f]{16,32})$`)
	hostForm   = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`)
	ifaceForm  = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:-]*$`)
	fsTypeForm = regexp.MustCompile(`^[a-z][a-z0-9]*$`)
)

const (
	defaultPort   = "3260"
	defaultIface  = "default"
	defaultFSType = "ext4"
	// longestIface is ISCSI_MAX_IFACE_LEN of open-iscsi without its final zero.
	longestIface = 64
)

// describe implements protocol.
func (*iscsi) describe(v volume.Volume) (described, error) {
	d := described{spec: v.Spec.Name}
	var s v1.ISCSIVolumeSource
	field := "iscsi"
	if v.PV != nil {
		p := v.PV.Spec.ISCSI
		field, d.spec = "PersistentVolume "+v.PV.Name+": spec.iscsi", v.PV.Name
		s = v1.ISCSIVolumeSource{TargetPortal: p.TargetPortal, IQN: p.IQN, Lun: p.Lun, ISCSIInterface: p.ISCSIInterface, FSType: p.FSType, ReadOnly: p.ReadOnly,
			Portals: p.Portals, DiscoveryCHAPAuth: p.DiscoveryCHAPAuth, SessionCHAPAuth: p.SessionCHAPAuth, InitiatorName: p.InitiatorName}
		if p.SecretRef != nil {
			d.secret = &v1.SecretReference{Name: p.SecretRef.Name, Namespace: p.SecretRef.Namespace}
		}
	} else {
		s = *v.Spec.ISCSI
		if s.SecretRef != nil {
			d.secret = &v1.SecretReference{Name: s.SecretRef.Name}
		}
	}
	if d.secret != nil && d.secret.Namespace == "" {
		d.secret.Namespace = v.Pod.Namespace
	}
	d.chapDiscovery, d.chapSession = s.DiscoveryCHAPAuth, s.SessionCHAPAuth
	r := &d.record
	*r = record{Unique: fmt.Sprintf("%s:%s:%d", s.TargetPortal, s.IQN, s.Lun), Spec: d.spec, IQN: s.IQN, LUN: int(s.Lun), Iface: s.ISCSIInterface, From: s.ISCSIInterface}
	if r.Iface == "" {
		r.Iface, r.From = defaultIface, defaultIface
	}
	if err := r.onNode(v, s.FSType, s.ReadOnly, field); err != nil {
		return d, err
	}
	for i, p := range append([]string{s.TargetPortal}, s.Portals...) {
		name := field + ".targetPortal"
		if i > 0 {
			name = fmt.Sprintf("%s.portals[%d]", field, i-1)
		}
		portal, err := parsePortal(p)
		if err != nil {
			return d, fmt.Errorf("%s: %q: %w", name, p, err)
		}
		if !slices.Contains(r.Portals, portal) {
			r.Portals = append(r.Portals, portal)
		}
	}
	if s.InitiatorName != nil && *s.InitiatorName != "" {
		r.Initiator, r.Iface = *s.InitiatorName, r.Portals[0]+":"+d.spec
	}
	err := checkISCSI(d, field)
	r.Place = filepath.Join("iface-"+r.Iface, r.Portals[0]+"-"+r.IQN+"-lun-"+strconv.Itoa(r.LUN))
	if r.Block {
		r.Place = filepath.Join(devicesDir, r.Place)
	}
	return d, err
}

func checkISCSI(d described, field string) error {
	r := d.record
	switch {
	case !nameForm.MatchString(r.IQN):
		return fmt.Errorf("%s.iqn: %q: want the name of a target, such as iqn.2003-01.org.example:disks", field, r.IQN)
	case r.LUN < 0 || r.LUN > 255:
		return fmt.Errorf("%s.lun: %d: want 0 to 255", field, r.LUN)
	case !ifaceForm.MatchString(r.From):
		return fmt.Errorf("%s.iscsiInterface: %q: want the name of an interface of iscsiadm (iscsiadm -m iface)", field, r.From)
	case r.Initiator != "" && !nameForm.MatchString(r.Initiator):
		return fmt.Errorf("%s.initiatorName: %q: want a name such as iqn.2003-01.org.example:node-1", field, r.Initiator)
	case r.Initiator != "" && len(r.Iface) > longestIface:
		return fmt.Errorf("%s.initiatorName: with it the interface is named %q, which has more than %d characters: want a shorter name of the volume", field, r.Iface, longestIface)
	case (d.chapDiscovery || d.chapSession) && d.secret == nil:
		return fmt.Errorf("%s.secretRef is empty: want a Secret with the keys that CHAP needs", field)
	}
	return nil
}

// onNode fills in what both kinds say about the file system.
func (r *record) onNode(v volume.Volume, fsType string, readOnly bool, field string) error {
	r.ReadOnly = readOnly || v.ReadOnly
	if v.Block() {
		r.Block = true
		return nil
	}
	if r.FSType = fsType; fsType == "" {
		r.FSType = defaultFSType
	}
	if !fsTypeForm.MatchString(r.FSType) {
		return fmt.Errorf("%s.fsType: %q: want a file system of the node, such as ext4 or xfs", field, fsType)
	}
	if v.PV != nil {
		r.Options = v.PV.Spec.MountOptions
	}
	return nil
}

// parsePortal returns a portal as ADDRESS:PORT, an IPv6 address in brackets.
func parsePortal(s string) (string, error) {
	host, port := s, defaultPort
	if i := strings.LastIndexByte(s, ':'); i >= 0 && (strings.HasPrefix(s, "[") && i > strings.IndexByte(s, ']') || strings.Count(s, ":") == 1) {
		host, port = s[:i], s[i+1:]
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil || number == 0 {
		return "", fmt.Errorf("want ADDRESS or ADDRESS:PORT")
	}
	bare := strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	if a, err := netip.ParseAddr(bare); err == nil && a.Is6() {
		return "[" + bare + "]:" + port, nil
	}
	if !hostForm.MatchString(host) {
		return "", fmt.Errorf("want ADDRESS or ADDRESS:PORT, with an IPv6 address in brackets")
	}
	return host + ":" + port, nil
}

// placeForm is a disk's directory below the plugin's.
var placeForm = regexp.MustCompile(`^(volumeDevices/)?iface-([^/]+)/([^/]+:\d+)-((?:iqn|eui|naa)\.[^/]+)-lun-(\d+)$`)

// adopt implements protocol.
func (*iscsi) adopt(place string) (record, bool) {
	m := placeForm.FindStringSubmatch(place)
	if m == nil {
		return record{}, false
	}
	lun, err := strconv.Atoi(m[5])
	return record{Unique: fmt.Sprintf("%s:%s:%d", m[3], m[4], lun), Place: place, Block: m[1] != "", Portals: []string{m[3]}, IQN: m[4], LUN: lun, Iface: m[2], From: m[2], Ours: []string{m[3]}}, err == nil
}

// upstreamFile is upstream's record of a disk, in the directory that the disk is mounted on.
const upstreamFile = "iscsi.json"

// upstreamDisk is its content.
type upstreamDisk struct {
	VolName       string
	Portals       []string
	Iqn           string
	Lun           string
	InitIface     string
	Iface         string
	InitiatorName string
}

// save implements protocol.
func (*iscsi) save(r *record, dir string) error {
	b, err := json.Marshal(upstreamDisk{VolName: r.Spec, Portals: r.Portals, Iqn: r.IQN, Lun: strconv.Itoa(r.LUN), InitIface: r.From, Iface: r.Iface, InitiatorName: r.Initiator})
	if err == nil {
		err = replace(filepath.Join(dir, upstreamFile), append(b, '\n'))
	}
	return err
}

// load implements protocol.
func (*iscsi) load(r *record, dir string) {
	var u upstreamDisk
	b, err := os.ReadFile(filepath.Join(dir, upstreamFile))
	if err != nil || json.Unmarshal(b, &u) != nil || u.Iqn != r.IQN || u.Iface != r.Iface {
		return
	}
	for _, p := range u.Portals {
		if portal, err := parsePortal(p); err == nil && !slices.Contains(r.Portals, portal) {
			r.Portals = append(r.Portals, portal)
			r.Ours = append(r.Ours, portal)
		}
	}
	if nameForm.MatchString(u.InitiatorName) && ifaceForm.MatchString(u.InitIface) {
		r.Initiator, r.From = u.InitiatorName, u.InitIface
	}
}

// look implements protocol. Each session is a directory of sysfs, with its target, portal, interface and, once the kernel has looked, its devices.
func (k *iscsi) look(r *record) ([]path, error) {
	out := make([]path, len(r.Portals))
	for i, p := range r.Portals {
		out[i].name = p
	}
	sessions, err := k.system.list("class/iscsi_session")
	if err != nil {
		return nil, err
	}
	for _, session := range sessions {
		dir := filepath.Join("class/iscsi_session", session)
		if k.system.text(dir, "targetname") != r.IQN {
			continue
		}
		if iface := k.system.text(dir, "ifacename"); iface != "" && iface != r.Iface {
			continue
		}
		id := strings.TrimPrefix(session, "session")
		portal := k.portal(id)
		i := slices.IndexFunc(out, func(p path) bool { return samePortal(p.name, portal) })
		if i < 0 {
			continue
		}
		if out[i], err = k.session(r, out[i].name, id); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// portal returns where a session leads to, as it was configured: a target may have sent it elsewhere.
func (k *iscsi) portal(session string) string {
	dir := filepath.Join("class/iscsi_connection", "connection"+session+":0")
	host, port := k.system.text(dir, "persistent_address"), k.system.text(dir, "persistent_port")
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	return host + ":" + port
}

// samePortal compares portals, whose IPv6 addresses may be written differently.
func samePortal(a, b string) bool {
	x, xErr := netip.ParseAddrPort(a)
	y, yErr := netip.ParseAddrPort(b)
	return a == b || xErr == nil && yErr == nil && x == y
}

// session returns the way of a session.
func (k *iscsi) session(r *record, portal, id string) (path, error) {
	p := path{name: portal, session: id}
	dir := filepath.Join("class/iscsi_session", "session"+id)
	device, err := k.system.real(filepath.Join(dir, "device"))
	if err != nil {
		return p, err
	}
	host := filepath.Base(filepath.Dir(device)) // .../host3/session1
	number, ok := strings.CutPrefix(host, "host")
	if !ok {
		return p, fmt.Errorf("session %s of %s lies at %s; want a directory of a SCSI host", id, portal, device)
	}
	target := k.system.text(dir, "target_id")
	if n, err := strconv.ParseUint(target, 10, 31); err != nil || n > 1<<16 { // not bound to one
		target = "0"
	}
	p.ids = []address{{number, "0", target}}
	p.device, p.wwid = k.system.device(p.ids, r.LUN)
	state := k.system.text(dir, "state")
	if p.up = state == "LOGGED_IN"; !p.up {
		p.down = fmt.Sprintf("the session is in state %s: the target does not answer", state)
	}
	return p, nil
}
