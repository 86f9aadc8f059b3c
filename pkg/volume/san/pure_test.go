package san

import (
	"errors"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/winkube/winkube/pkg/command/commandtest"
	"github.com/winkube/winkube/pkg/volume"
)

// TestNext: from what is known of a disk follows the one next step.
func TestNext(t *testing.T) {
	up := path{name: "a", up: true, device: "sda", wwid: "1"}
	fs, ro, block := record{FSType: "ext4"}, record{FSType: "ext4", ReadOnly: true}, record{Block: true}
	tried := func(steps ...step) map[step]bool {
		m := map[step]bool{}
		for _, s := range steps {
			m[s] = true
		}
		return m
	}
	for _, c := range []struct {
		name string
		of   record
		s    seen
		want string
	}{
		{"nothing is known", fs, seen{}, "record"},
		{"no session", fs, seen{recorded: true, paths: []path{{name: "a"}}}, "connect a"},
		{"login without effect", fs, seen{recorded: true, paths: []path{{name: "a"}}, tried: tried(step{connect, "a"})}, "error: a: there is no session after the login"},
		{"session without device", fs, seen{recorded: true, paths: []path{{name: "a", up: true}}}, "scan a"},
		{"scanned", fs, seen{recorded: true, paths: []path{{name: "a", up: true}}, tried: tried(step{scan, "a"})}, "await device a"},
		{"no such LUN", fs, seen{recorded: true, paths: []path{{name: "a", up: true}}, tried: tried(step{scan, "a"}, step{awaitDevice, "a"})}, "error: a: the kernel has found no such disk after 30s"},
		{"the target does not answer", fs, seen{recorded: true, paths: []path{{name: "a", down: "gone", device: "sda"}}}, "error: a: gone"},
		{"one of two ways failed", fs, seen{recorded: true, paths: []path{up, {name: "b"}}, failed: map[string]error{"b": errors.New("no")}}, "probe sda"},
		{"multipathd has not joined them", fs, seen{recorded: true, paths: []path{up, {name: "b", up: true, device: "sdb", wwid: "1"}}, mapper: true}, "await map"},
		{"multipathd does not", fs, seen{recorded: true, paths: []path{up, {name: "b", up: true, device: "sdb", wwid: "1"}}, mapper: true, tried: tried(step{do: awaitMap})}, "probe sda"},
		{"multipathd has", fs, seen{recorded: true, paths: []path{up, {name: "b", up: true, device: "sdb", wwid: "1"}}, mapper: true, mapped: "dm-3"}, "probe dm-3"},
		{"two disks", fs, seen{recorded: true, paths: []path{up, {name: "b", up: true, device: "sdb", wwid: "2"}}}, "error: a has the disk 1 and b has the disk 2: want ways to one disk"},
		{"an empty disk", fs, seen{recorded: true, paths: []path{up}, content: empty}, "format sda"},
		{"an empty disk, read-only", ro, seen{recorded: true, paths: []path{up}, content: empty}, "error: /dev/sda is empty and the volume is read-only"},
		{"just formatted", fs, seen{recorded: true, paths: []path{up}, content: "ext4", tried: tried(step{format, "sda"})}, "mount sda"},
		{"a file system", fs, seen{recorded: true, paths: []path{up}, content: "ext4"}, "check sda"},
		{"an older one", fs, seen{recorded: true, paths: []path{up}, content: "ext3"}, "check sda"},
		{"a file system, read-only", ro, seen{recorded: true, paths: []path{up}, content: "ext4"}, "mount sda"},
		{"mounted for the node, though its portal is away", fs, seen{recorded: true, mounted: true, paths: []path{{name: "a"}}}, "bind"},
		{"mounted read-only for another", fs, seen{recorded: true, mounted: true, readOnly: true}, "error: another pod has the disk read-only"},
		{"mounted read-write for another", ro, seen{recorded: true, mounted: true}, "bind"},
		{"of a group", fs, seen{recorded: true, mounted: true, placed: true, group: true}, "fsGroup"},
		{"read-only, of a group", ro, seen{recorded: true, mounted: true, placed: true, group: true}, "mark"},
		{"with its group", fs, seen{recorded: true, mounted: true, placed: true, group: true, grouped: true}, "mark"},
		{"made", fs, seen{recorded: true, mounted: true, placed: true, made: true}, "done"},
		{"a device", block, seen{recorded: true, paths: []path{up}}, "link sda"},
		{"a linked device", block, seen{recorded: true, paths: []path{up}, placed: true}, "mark"},
	} {
		st, err := next(&c.of, &c.s)
		got := st.String()
		if err != nil {
			got = "error: " + err.Error()
		}
		if got != c.want && (err == nil || !strings.HasPrefix(got, c.want)) {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

// TestNextDown: a disk is unmounted, then its device is removed, then the session ends, as far as no one else needs them.
func TestNextDown(t *testing.T) {
	ours := record{Portals: []string{"a"}, Ours: []string{"a"}}
	up := []path{{name: "a", up: true, device: "sda", session: "7"}}
	for _, c := range []struct {
		name string
		of   record
		s    ending
		want string
	}{
		{"mounted", ours, ending{seen: seen{mounted: true, paths: up}}, "unmount"},
		{"claimed", ours, ending{seen: seen{paths: up}, busy: "sda"}, "error: /dev/sda is still in use"},
		{"mapped", ours, ending{seen: seen{paths: up, mapped: "dm-0"}}, "flush map dm-0"},
		{"free", ours, ending{seen: seen{paths: up}}, "delete device sda"},
		{"the disk of another volume, too", ours, ending{seen: seen{paths: up}, shared: true, others: []string{"a"}}, "forget ways"},
		{"without device", ours, ending{seen: seen{paths: []path{{name: "a", up: true, session: "7"}}}}, "disconnect a"},
		{"without device, and the portal does not answer", ours, ending{seen: seen{paths: []path{{name: "a", down: "x", session: "7"}}}}, "disconnect a"},
		{"the session is needed", ours, ending{seen: seen{paths: []path{{name: "a", up: true, session: "7"}}}, others: []string{"a"}}, "forget ways"},
		{"an administrator's session", record{Portals: []string{"a"}}, ending{seen: seen{paths: up}}, "forget ways"},
		{"fc", record{WWNs: []string{"w"}}, ending{seen: seen{paths: []path{{name: "w", up: true, device: "sdc"}}}}, "delete device sdc"},
		{"nothing left", ours, ending{forgot: true}, "forget record"},
	} {
		st, err := nextDown(&c.of, &c.s)
		got := st.String()
		if err != nil {
			got = "error: " + err.Error()
		}
		if got != c.want && (err == nil || !strings.HasPrefix(got, c.want)) {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

func inline(source v1.VolumeSource) volume.Volume {
	return volume.Volume{Pod: &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", UID: "u"}}, Spec: &v1.Volume{Name: "v", VolumeSource: source}}
}

// TestWrongFields: an error names the field, its value and what would be right.
func TestWrongFields(t *testing.T) {
	for _, c := range []struct {
		change func(*v1.ISCSIVolumeSource)
		want   string
	}{
		{func(s *v1.ISCSIVolumeSource) { s.TargetPortal = "--help" }, `iscsi.targetPortal: "--help": want ADDRESS or ADDRESS:PORT`},
		{func(s *v1.ISCSIVolumeSource) { s.TargetPortal = "a:0" }, `iscsi.targetPortal: "a:0": want ADDRESS or ADDRESS:PORT`},
		{func(s *v1.ISCSIVolumeSource) { s.Portals = []string{"b", "c/d"} }, `iscsi.portals[1]: "c/d": want ADDRESS or ADDRESS:PORT`},
		{func(s *v1.ISCSIVolumeSource) { s.IQN = "iqn.2003-01.x/../y" }, `iscsi.iqn: "iqn.2003-01.x/../y": want the name of a target, such as iqn.`},
		{func(s *v1.ISCSIVolumeSource) { s.Lun = 256 }, "iscsi.lun: 256: want 0 to 255"},
		{func(s *v1.ISCSIVolumeSource) { s.ISCSIInterface = "../x" }, `iscsi.iscsiInterface: "../x": want the name of an interface of iscsiadm`},
		{func(s *v1.ISCSIVolumeSource) { s.FSType = "ext4 -c" }, `iscsi.fsType: "ext4 -c": want a file system of the node, such as ext4 or xfs`},
		{func(s *v1.ISCSIVolumeSource) { s.InitiatorName = ptr.To("me") }, `iscsi.initiatorName: "me": want a name such as iqn.`},
		{func(s *v1.ISCSIVolumeSource) {
			s.InitiatorName, s.TargetPortal = ptr.To("iqn.2003-01.org.example:me"), strings.Repeat("a", 70)
		}, "which has more than 64 characters: want a shorter name of the volume"},
		{func(s *v1.ISCSIVolumeSource) { s.SessionCHAPAuth = true }, "iscsi.secretRef is empty: want a Secret with the keys that CHAP needs"},
	} {
		s := &v1.ISCSIVolumeSource{TargetPortal: "10.0.0.1", IQN: "iqn.2003-01.org.example:x"}
		c.change(s)
		if _, err := (&iscsi{}).describe(inline(v1.VolumeSource{ISCSI: s})); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v; want %s", err, c.want)
		}
	}
	for _, c := range []struct {
		s    v1.FCVolumeSource
		want string
	}{
		{v1.FCVolumeSource{}, "fc names no disk: want targetWWNs and lun, or wwids"},
		{v1.FCVolumeSource{TargetWWNs: []string{"500a0982991b8dc5"}}, "fc.lun is empty: targetWWNs need it"},
		{v1.FCVolumeSource{TargetWWNs: []string{"500a"}, Lun: ptr.To(int32(1))}, `fc.targetWWNs[0]: "500a": want the 16 hexadecimal digits`},
		{v1.FCVolumeSource{TargetWWNs: []string{"500a0982991b8dc5"}, Lun: ptr.To(int32(-1))}, "fc.lun: -1: want 0 to 255"},
		{v1.FCVolumeSource{WWIDs: []string{"../../x"}}, `fc.wwids[0]: "../../x": want what follows scsi-`},
		{v1.FCVolumeSource{WWIDs: []string{"a"}, TargetWWNs: []string{"500a0982991b8dc5"}}, "fc has targetWWNs and wwids: want one of them"},
	} {
		if _, err := (&fc{}).describe(inline(v1.VolumeSource{FC: &c.s})); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v; want %s", err, c.want)
		}
	}
}

func TestPortals(t *testing.T) {
	for in, want := range map[string]string{
		"10.0.0.1": "10.0.0.1:3260", "10.0.0.1:860": "10.0.0.1:860", "san.example": "san.example:3260", "[fd00::1]:860": "[fd00::1]:860", "[fd00::1]": "[fd00::1]:3260", "fd00::1": "[fd00::1]:3260",
	} {
		if got, err := parsePortal(in); got != want || err != nil {
			t.Errorf("%s: %s, %v; want %s", in, got, err, want)
		}
	}
	if !samePortal("[fd00::1]:3260", "[fd00:0::1]:3260") || samePortal("10.0.0.1:3260", "10.0.0.1:3261") {
		t.Error("portals are compared by their text")
	}
	if host, port := addressOf("[fd00::1]:3260"); host != "fd00::1" || port != "3260" {
		t.Errorf("%s, %s", host, port)
	}
	const out = "[fd00::1]:3260,2 iqn.x:a\n10.0.0.1:3260,1 iqn.x:ab\n10.0.0.1:3260,1 iqn.x:a\n"
	for portal, want := range map[string]string{"10.0.0.1:3260": ",1 true", "[fd00::1]:3260": ",2 true", "10.9.9.9:3260": " true"} {
		if tag, found := announced([]byte(out), portal, "iqn.x:a"); tag+" "+map[bool]string{true: "true"}[found] != want {
			t.Errorf("%s: %q, %v", portal, tag, found)
		}
	}
	if _, found := announced([]byte(out), "10.0.0.1:3260", "iqn.x"); found {
		t.Error("the beginning of a name counts as the name")
	}
}

// TestEdited: a record keeps what is not changed, and its frame.
func TestEdited(t *testing.T) {
	const have = "# BEGIN RECORD 2.1.8\nnode.name = iqn.x\nnode.session.auth.authmethod = None\nnode.session.auth.password = old\n# END RECORD\n"
	const want = "# BEGIN RECORD 2.1.8\nnode.name = iqn.x\nnode.session.auth.authmethod = CHAP\nnode.session.auth.password = a = b\n# END RECORD\n"
	got := edited([]byte(have), []setting{{"node.session.auth.authmethod", "CHAP"}, {"node.session.auth.password", "a = b"}})
	if string(got) != want {
		t.Errorf("got\n%s", got)
	}
	keys := sessionKeys
	for value, wrong := range map[string]bool{"ok # = x": false, "line\n": false, "two\nlines": true, " x9": true, strings.Repeat("x", 256): true, "": true} {
		secret := &v1.Secret{Data: map[string][]byte{keys[0]: []byte("user"), keys[1]: []byte(value)}}
		out, err := settings("Secret a/b", secret, keys)
		if (err != nil) != wrong || err != nil && value != "" && strings.Contains(err.Error(), value) || err == nil && !slices.Contains(out, setting{keys[1], strings.TrimSpace(value)}) {
			t.Errorf("%q: %v, %v", value, out, err)
		}
	}
}

func TestIfaceChanges(t *testing.T) {
	from := "iface.iscsi_ifacename = default\niface.transport_name = tcp\niface.mtu = 9000\niface.ipaddress = <empty>\n"
	got := ifaceChanges([]byte(from), []byte("iface.iscsi_ifacename = x\niface.transport_name = tcp\n"), "iqn.me")
	if want := []setting{{"iface.mtu", "9000"}, {"iface.initiatorname", "iqn.me"}}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// TestHints: an error of iscsiadm says what to do.
func TestHints(t *testing.T) {
	for code, want := range map[int]string{exitNoDriver: "modprobe iscsi_tcp", exitNoDaemon: "systemctl enable --now iscsid", exitAuth: "want: CHAP user and password"} {
		if err := explain(commandtest.Exit(code, "x")); !strings.Contains(err.Error(), want) {
			t.Errorf("%d: %v", code, err)
		}
	}
}

// TestAdopt: places of upstream's kubelet name their disks, and other directories do not.
func TestAdopt(t *testing.T) {
	for place, want := range map[string]string{
		"iface-default/10.0.0.1:3260-iqn.2003-01.org.example:a-lun-1-lun-7":                   "10.0.0.1:3260:iqn.2003-01.org.example:a-lun-1:7",
		"volumeDevices/iface-10.0.0.1:3260:pv/[fd00::1]:3260-iqn.2003-01.org.example:a-lun-0": "[fd00::1]:3260:iqn.2003-01.org.example:a:0",
		"iface-default/x": "", "records/x": "", "iface-default/10.0.0.1:3260-iqn.2003-01.org.example:a-lun-0/u": "",
	} {
		r, ok := (&iscsi{}).adopt(place)
		if r.Unique != want || ok != (want != "") || ok && r.Place != place {
			t.Errorf("%s: %q, %v", place, r.Unique, ok)
		}
	}
	for place, want := range map[string]string{
		"500a0982991b8dc5-500a0982891b8dc5-lun-2": "[500a0982991b8dc5 500a0982891b8dc5]:2", "volumeDevices/3600508b400105e210000900000490000": "[3600508b400105e210000900000490000]", "volumeDevices": "", "500a-lun-2": "",
	} {
		r, ok := (&fc{}).adopt(place)
		if ok != (want != "") || ok && r.Unique != want {
			t.Errorf("%s: %q, %v", place, r.Unique, ok)
		}
	}
}
