package san

import (
	"context"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/volume"
)

const fcPlugin = "kubernetes.io/fc"

// fc reaches disks by Fibre Channel. The fabric's switches decide who sees which disk, so there is nothing to log in to.
type fc struct{ system System }

func (*fc) plugin() string { return fcPlugin }

func (*fc) source(v volume.Volume) (source *v1.FCVolumeSource, field string) {
	if v.PV != nil {
		return v.PV.Spec.FC, "PersistentVolume " + v.PV.Name + ": spec.fc"
	}
	return v.Spec.FC, "fc"
}

func (k *fc) has(v volume.Volume) bool {
	s, _ := k.source(v)
	return s != nil
}

var (
	wwnForm  = regexp.MustCompile(`^[0-9a-f]{16}$`)
	wwidForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:-]*$`)
)

// describe implements protocol.
func (k *fc) describe(v volume.Volume) (described, error) {
	s, field := k.source(v)
	d := described{spec: v.Spec.Name}
	if v.PV != nil {
		d.spec = v.PV.Name
	}
	r := &d.record
	r.Spec = d.spec
	if err := r.onNode(v, s.FSType, s.ReadOnly, field); err != nil {
		return d, err
	}
	switch {
	case len(s.TargetWWNs) > 0 && len(s.WWIDs) > 0:
		return d, fmt.Errorf("%s has targetWWNs and wwids: want one of them", field)
	case len(s.TargetWWNs) > 0 && s.Lun == nil:
		return d, fmt.Errorf("%s.lun is empty: targetWWNs need it", field)
	case len(s.TargetWWNs) > 0 && (*s.Lun < 0 || *s.Lun > 255):
		return d, fmt.Errorf("%s.lun: %d: want 0 to 255", field, *s.Lun)
	case len(s.TargetWWNs) > 0:
		r.LUN = int(*s.Lun)
		for i, wwn := range s.TargetWWNs {
			low := strings.TrimPrefix(strings.ToLower(wwn), "0x")
			if !wwnForm.MatchString(low) {
				return d, fmt.Errorf("%s.targetWWNs[%d]: %q: want the 16 hexadecimal digits of a target's port, such as 500a0982991b8dc5", field, i, wwn)
			}
			r.WWNs = append(r.WWNs, low)
		}
		r.Unique, r.Place = fmt.Sprintf("%v:%d", s.TargetWWNs, r.LUN), strings.Join(s.TargetWWNs, "-")+"-lun-"+strconv.Itoa(r.LUN)
	case len(s.WWIDs) > 0:
		for i, wwid := range s.WWIDs {
			name := strings.ReplaceAll(wwid, " ", "_") // as udev names its links
			if !wwidForm.MatchString(name) {
				return d, fmt.Errorf("%s.wwids[%d]: %q: want what follows scsi- in the disk's name in /dev/disk/by-id, such as 3600508b400105e210000900000490000", field, i, wwid)
			}
			r.WWIDs = append(r.WWIDs, name)
		}
		r.Unique, r.Place = fmt.Sprintf("%v", s.WWIDs), strings.Join(r.WWIDs, "-")
	default:
		return d, fmt.Errorf("%s names no disk: want targetWWNs and lun, or wwids", field)
	}
	if r.Block {
		r.Place = filepath.Join(devicesDir, r.Place)
	}
	return d, nil
}

// adopt implements protocol.
func (*fc) adopt(place string) (record, bool) {
	name, block := strings.CutPrefix(place, devicesDir+"/")
	if name == "" || strings.Contains(name, "/") || name == devicesDir {
		return record{}, false
	}
	r := record{Place: place, Block: block}
	if ports, lun, ok := strings.Cut(name, "-lun-"); ok {
		n, err := strconv.Atoi(lun)
		if r.LUN, r.WWNs = n, strings.Split(ports, "-"); err != nil {
			return r, false
		}
		r.Unique = fmt.Sprintf("%v:%d", r.WWNs, n)
		for i, wwn := range r.WWNs {
			r.WWNs[i] = strings.TrimPrefix(strings.ToLower(wwn), "0x")
		}
		return r, !slices.ContainsFunc(r.WWNs, func(w string) bool { return !wwnForm.MatchString(w) })
	}
	r.WWIDs = strings.Split(name, "-")
	r.Unique = fmt.Sprintf("%v", r.WWIDs)
	return r, wwidForm.MatchString(name)
}

// look implements protocol.
func (k *fc) look(r *record) ([]path, error) {
	if len(r.WWIDs) > 0 {
		return k.byWWID(r)
	}
	ports, err := k.system.list("class/fc_remote_ports")
	if err != nil {
		return nil, err
	}
	var out []path
	for _, wwn := range r.WWNs {
		p := path{name: wwn}
		for _, port := range ports {
			dir := filepath.Join("class/fc_remote_ports", port)
			if k.system.text(dir, "port_name") != "0x"+wwn {
				continue
			}
			if state := k.system.text(dir, "port_state"); state != "Online" {
				p.down = fmt.Sprintf("the port of the storage is in state %s", state)
				continue
			}
			// rport-HOST:CHANNEL-NUMBER
			host, rest, _ := strings.Cut(strings.TrimPrefix(port, "rport-"), ":")
			channel, _, _ := strings.Cut(rest, "-")
			target := k.system.text(dir, "scsi_target_id")
			if !isNumber(host) || !isNumber(channel) || !isNumber(target) { // -1: no target
				continue
			}
			p.ids = append(p.ids, address{host, channel, target})
		}
		if p.up = len(p.ids) > 0; p.up {
			p.down = ""
			p.device, p.wwid = k.system.device(p.ids, r.LUN)
		} else if p.down == "" {
			p.down = "no FC port of this node sees that port of the storage: want it in a zone with this node's ports (" + strings.Join(k.ports(), ", ") + ")"
		}
		out = append(out, p)
	}
	return k.twins(out)
}

// twins adds other devices of the disk: each port of this node that sees it makes one.
func (k *fc) twins(found []path) ([]path, error) {
	all, err := k.system.list("class/scsi_device")
	if err != nil {
		return nil, err
	}
	for _, id := range all {
		dir := filepath.Join("class/scsi_device", id, "device")
		wwid := k.system.text(dir, "wwid")
		blocks, err := k.system.list(filepath.Join(dir, "block"))
		if err != nil || len(blocks) == 0 || wwid == "" || !slices.ContainsFunc(found, func(p path) bool { return p.wwid == wwid }) {
			continue
		}
		if device := blocks[0]; k.system.node(device) && !slices.ContainsFunc(found, func(p path) bool { return p.device == device }) {
			found = append(found, path{name: device, up: true, device: device, wwid: wwid})
		}
	}
	return found, nil
}

// ports are the names of this node's ports.
func (k *fc) ports() (out []string) {
	hosts, _ := k.system.list("class/fc_host") // without any, the list says so
	for _, host := range hosts {
		out = append(out, k.system.text(filepath.Join("class/fc_host", host), "port_name")+" "+k.system.text(filepath.Join("class/fc_host", host), "port_state"))
	}
	if len(out) == 0 {
		out = []string{"none"}
	}
	return out
}

// byWWID finds disks by the names that udev gives them. Where a disk may be on the bus is not known before it was found.
func (k *fc) byWWID(r *record) ([]path, error) {
	hosts, err := k.system.list("class/fc_host")
	if err != nil {
		return nil, err
	}
	var out []path
	for _, wwid := range r.WWIDs {
		p := path{name: wwid}
		for _, host := range hosts {
			p.ids = append(p.ids, address{strings.TrimPrefix(host, "host"), "-", "-"})
		}
		if p.device = k.system.byID(wwid); p.device != "" {
			p.wwid = k.system.text(filepath.Join("block", p.device, "device"), "wwid")
		}
		if p.up = p.device != "" || len(hosts) > 0; !p.up {
			p.down = "this node has no FC port"
		}
		out = append(out, p)
	}
	return k.twins(out)
}

// announce implements protocol.
func (*fc) announce(*record, string) {}

// settle implements protocol.
func (*fc) settle(*record) {}

// connect implements protocol.
func (*fc) connect(context.Context, *record, string, secrets) error { return nil }

// disconnect implements protocol.
func (*fc) disconnect(context.Context, *record, path) error { return nil }

// forget implements protocol.
func (*fc) forget(context.Context, *record, bool) error { return nil }

// save implements protocol: upstream keeps no record.
func (*fc) save(*record, string) error { return nil }

// load implements protocol.
func (*fc) load(*record, string) {}
