package flex

import (
	"context"
	"encoding/base64"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/volume"
	"github.com/winkube/winkube/pkg/volume/paths"
)

// Keys of the options that drivers know.
const (
	optionFSType    = "kubernetes.io/fsType"
	optionReadWrite = "kubernetes.io/readwrite"
	optionName      = "kubernetes.io/pvOrVolumeName"
	optionSecret    = "kubernetes.io/secret/"
	optionGroup     = "kubernetes.io/mounterArgs.FsGroup"
	optionPod       = "kubernetes.io/pod.name"
	optionNamespace = "kubernetes.io/pod.namespace"
	optionUID       = "kubernetes.io/pod.uid"
	optionAccount   = "kubernetes.io/serviceAccount.name"
)

// described is one flexVolume of a pod, from its API objects.
type described struct {
	driver   string
	spec     string // name of its directory: the PersistentVolume's, or inline the volume's in the pod's spec
	fsType   string
	readOnly bool
	options  map[string]string
	secret   *v1.SecretReference // nil: none
}

// describe returns what calls need of v. The error says what is wrong in the API object. It is pure.
func describe(platform pod.Platform, v volume.Volume) (described, error) {
	var d described
	if v.PV != nil {
		s := v.PV.Spec.FlexVolume
		d = described{driver: s.Driver, spec: v.PV.Name, fsType: s.FSType, readOnly: s.ReadOnly || v.ReadOnly, options: s.Options}
		if s.SecretRef != nil && s.SecretRef.Name != "" {
			d.secret = &v1.SecretReference{Name: s.SecretRef.Name, Namespace: s.SecretRef.Namespace}
			if d.secret.Namespace == "" {
				d.secret.Namespace = v.Pod.Namespace
			}
		}
		if len(v.PV.Spec.MountOptions) > 0 {
			return d, fmt.Errorf("PersistentVolume %s: mountOptions %q: Mount options are not supported for this volume type; want them among flexVolume.options, if the driver has any", v.PV.Name, v.PV.Spec.MountOptions)
		}
	} else {
		s := v.Spec.FlexVolume
		d = described{driver: s.Driver, spec: v.Spec.Name, fsType: s.FSType, readOnly: s.ReadOnly, options: s.Options}
		if s.SecretRef != nil && s.SecretRef.Name != "" {
			d.secret = &v1.SecretReference{Name: s.SecretRef.Name, Namespace: v.Pod.Namespace}
		}
	}
	if err := checkName(platform, d.driver); err != nil {
		return d, err
	}
	for key := range d.options {
		vendor, _, _ := strings.Cut("."+strings.ToLower(key), "/")
		if strings.HasSuffix(vendor, ".kubernetes.io") || strings.HasSuffix(vendor, ".k8s.io") {
			return d, fmt.Errorf("flexVolume.options has the key %q: want none of kubernetes.io and k8s.io, which the kubelet sets", key)
		}
	}
	return d, paths.CheckElement(platform, d.spec)
}

// shortestSecret is the least length of a value that messages hide: shorter ones occur in many words and are no secret.
const shortestSecret = 3

// callOptions are the JSON object of a call.
type callOptions struct {
	all     map[string]string
	secrets []string // values in it, and what they decode to
}

// hide replaces secrets in text. nil options have none.
func (o *callOptions) hide(text string) string {
	if o == nil {
		return text
	}
	for _, s := range o.secrets {
		text = strings.ReplaceAll(text, s, "***")
	}
	return text
}

// longest returns the length of the longest secret.
func (o *callOptions) longest() int {
	if o == nil || len(o.secrets) == 0 {
		return 0
	}
	return len(o.secrets[0])
}

// plainOptions returns the options of every call. It is pure.
func (d described) plainOptions() *callOptions {
	o := maps.Clone(d.options)
	if o == nil {
		o = map[string]string{}
	}
	o[optionFSType], o[optionReadWrite], o[optionName] = d.fsType, "rw", d.spec
	if d.readOnly {
		o[optionReadWrite] = "ro"
	}
	return &callOptions{all: o}
}

// mountOptions returns the options of the call mount. It is pure.
func (d described) mountOptions(p *v1.Pod, group *int64, secret map[string][]byte) *callOptions {
	o := d.plainOptions()
	o.all[optionPod], o.all[optionNamespace], o.all[optionUID], o.all[optionAccount] = p.Name, p.Namespace, string(p.UID), p.Spec.ServiceAccountName
	if group != nil {
		o.all[optionGroup] = strconv.FormatInt(*group, 10)
	}
	for name, value := range secret {
		text := base64.StdEncoding.EncodeToString(value)
		o.all[optionSecret+name] = text
		for _, s := range []string{text, string(value), strings.TrimSpace(string(value))} {
			if len(s) >= shortestSecret {
				o.secrets = append(o.secrets, s)
			}
		}
	}
	// The longest first: one may be a part of another.
	slices.SortFunc(o.secrets, func(a, b string) int { return len(b) - len(a) })
	o.secrets = slices.Compact(o.secrets)
	return o
}

// secret returns the data of d's Secret, nil without one.
func (k *Kind) secret(ctx context.Context, d described) (map[string][]byte, error) {
	if d.secret == nil {
		return nil, nil
	}
	secret, err := k.parts.Objects.Secret(ctx, d.secret.Namespace, d.secret.Name)
	if err != nil {
		return nil, fmt.Errorf("couldn't get secret %s/%s: %w", d.secret.Namespace, d.secret.Name, err)
	}
	if string(secret.Type) != d.driver {
		return nil, fmt.Errorf("cannot get secret of type %s: Secret %s/%s has type %q, and the driver gets only Secrets of type %q", d.driver, d.secret.Namespace, d.secret.Name, secret.Type, d.driver)
	}
	return secret.Data, nil
}

// scriptSpecials are characters that Windows' cmd.exe interprets in an argument, even in quotes.
const scriptSpecials = "\"%&|<>^!()\r\n"

// unsafeForScript returns the index of the first argument in which cmd.exe would interpret something; -1: none.
func unsafeForScript(argv []string) int {
	return slices.IndexFunc(argv, func(s string) bool { return strings.ContainsAny(s, scriptSpecials) })
}

// scriptJSON returns o as JSON in which cmd.exe, which parses the arguments of scripts, interprets nothing: all characters except letters, digits
// and harmless ones become \uXXXX. Otherwise an option such as "&calc.exe" would be a command. It is pure.
func scriptJSON(o map[string]string) string {
	var b strings.Builder
	text := func(s string) {
		b.WriteByte('"')
		for _, r := range s {
			switch {
			case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', strings.ContainsRune("-_./:=+@~", r):
				b.WriteRune(r)
			case r > 0xffff:
				high, low := utf16.EncodeRune(r)
				fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
			default:
				fmt.Fprintf(&b, `\u%04x`, r)
			}
		}
		b.WriteByte('"')
	}
	b.WriteByte('{')
	for i, key := range slices.Sorted(maps.Keys(o)) {
		if i > 0 {
			b.WriteByte(',')
		}
		text(key)
		b.WriteByte(':')
		text(o[key])
	}
	b.WriteByte('}')
	return b.String()
}
