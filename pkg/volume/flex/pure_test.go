package flex

import (
	"encoding/json"
	"maps"
	"path"
	"strings"
	"testing"
	"unicode/utf8"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/winkube/winkube/pkg/command"
	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/volume"
	"github.com/winkube/winkube/pkg/volume/volumetest"
)

func FuzzCheckName(f *testing.F) {
	for _, name := range []string{driverName, "dir", "microsoft.com/smb.cmd", "", "..", "a/..", "../a", "a/b/c", "a~b", ".a", "a/.b", `a\b`, "c:/x", "c:", "a/b ", "kubernetes.io/x", "Kubernetes.IO/x", "con", "a/NUL.exe", "a\n", "ä"} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		for _, platform := range []pod.Platform{volumetest.Linux(), volumetest.Windows()} {
			if checkName(platform, name) != nil {
				continue
			}
			dir := escape(name)
			if path.Base(dir) != dir || path.Dir(path.Join("/plugins", dir, name[strings.LastIndex(name, "/")+1:])) != "/plugins/"+dir {
				t.Errorf("%q leads out of the directory", name)
			}
			if strings.ContainsAny(name, "\\:~\x00\r\n ") || strings.HasPrefix(dir, ".") || strings.HasPrefix(strings.ToLower(dir), "kubernetes.io~") {
				t.Errorf("%q is accepted", name)
			}
			if unescape(dir) != name {
				t.Errorf("%q reads %q again", name, unescape(dir))
			}
		}
	})
}

func TestCheckName(t *testing.T) {
	for name, want := range map[string]string{ // systems that accept it
		driverName: "linux windows", "dir": "linux windows", "microsoft.com/smb.cmd": "linux windows", "a/con": "linux", "nul/a": "linux", "a/b.": "linux",
		"": "", "..": "", "a/..": "", "a/b/c": "", `a\b`: "", "kubernetes.io/x": "", "KUBERNETES.io/x": "", "a//b": "", "a/": "", strings.Repeat("a", 256): "",
	} {
		var got []string
		for _, platform := range []pod.Platform{volumetest.Linux(), volumetest.Windows()} {
			if checkName(platform, name) == nil {
				got = append(got, platform.OS)
			}
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%q is accepted on %q, want %q", name, got, want)
		}
	}
}

func FuzzRead(f *testing.F) {
	for _, text := range []string{success, failure, lacking, plainInit, "", "{", "null", `{"status": 1}`, `[]`, `{"status":"Failure","message":"s3cr3ts3cr3t"}`} {
		f.Add(text, true)
		f.Add(text, false)
	}
	o := &callOptions{secrets: []string{"s3cr3t"}}
	f.Fuzz(func(t *testing.T, text string, ends bool) {
		var ran error
		if ends {
			ran = &wrapped{"cannot run s3cr3t", &command.ExitError{State: "exit status 1", Output: text}}
		}
		a, err := read("mount", []byte(text), ran, o)
		var known struct{ Status string }
		good := json.Unmarshal([]byte(text), &known) == nil && known.Status == "Success" && !ends
		if err == nil && (!good || a.Status != "Success") {
			t.Errorf("%q (%v) counts as success", text, ran)
		}
		if err != nil && strings.Contains(err.Error(), "s3cr3t") {
			t.Errorf("%q (%v): %v", text, ran, err)
		}
		if err != nil && (len(err.Error()) > 8*maxShown || !utf8.ValidString(err.Error())) {
			t.Errorf("%q: %d bytes: %v", text, len(err.Error()), err)
		}
	})
}

func TestRead(t *testing.T) {
	for text, want := range map[string]capabilities{
		success:   {Attach: true, SELinuxRelabel: true, FSGroup: true, RequiresFSResize: true},
		plainInit: {SELinuxRelabel: true, FSGroup: true, RequiresFSResize: true},
		`{"status":"Success","capabilities":{"attach":false,"selinuxRelabel":false,"supportsMetrics":true,"fsGroup":false,"requiresFSResize":false}}`: {SupportsMetrics: true},
		`{"status":"Success","capabilities":null,"more":{}}`: {Attach: true, SELinuxRelabel: true, FSGroup: true, RequiresFSResize: true},
	} {
		if a, err := read("init", []byte(text), nil, nil); err != nil || a.Capabilities != want {
			t.Errorf("%s: %+v, %v; want %+v", text, a.Capabilities, err, want)
		}
	}
}

func FuzzScriptJSON(f *testing.F) {
	f.Add("a", "b")
	f.Add("k&calc.exe", "%PATH% \"^|<>!()\r\n")
	f.Add("ä", "𝄞\\")
	f.Fuzz(func(t *testing.T, key, value string) {
		if !utf8.ValidString(key) || !utf8.ValidString(value) {
			t.Skip("the API has no such strings")
		}
		o := map[string]string{key: value, "more": ""}
		text := scriptJSON(o)
		var got map[string]string
		if err := json.Unmarshal([]byte(text), &got); err != nil || !maps.Equal(got, o) {
			t.Errorf("%s reads as %q (%v), want %q", text, got, err, o)
		}
		if strings.ContainsAny(strings.ReplaceAll(text, `"`, ""), scriptSpecials+" \t") {
			t.Errorf("%s is not safe for cmd.exe", text)
		}
	})
}

// TestOptions: the JSON of a mount, as upstream's kubelet writes it.
func TestOptions(t *testing.T) {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "shop", UID: "u"}, Spec: v1.PodSpec{ServiceAccountName: "default"}}
	pv := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}, Spec: v1.PersistentVolumeSpec{PersistentVolumeSource: v1.PersistentVolumeSource{
		FlexVolume: &v1.FlexPersistentVolumeSource{Driver: driverName, FSType: "cifs", Options: map[string]string{"share": "//nas/x"}, SecretRef: &v1.SecretReference{Name: "s"}}}}}
	d, err := describe(volumetest.Linux(), volume.Volume{Pod: p, Spec: &v1.Volume{Name: "v"}, PV: pv, ReadOnly: true})
	if err != nil || d.spec != "pv" || d.secret.Namespace != "shop" {
		t.Fatalf("%+v, %v", d, err)
	}
	o := d.mountOptions(p, new(int64(5)), map[string][]byte{"user": []byte("me"), "password": []byte("longer secret"), "part": []byte("secret")})
	const want = `kubernetes.io/fsType=cifs
kubernetes.io/mounterArgs.FsGroup=5
kubernetes.io/pod.name=web
kubernetes.io/pod.namespace=shop
kubernetes.io/pod.uid=u
kubernetes.io/pvOrVolumeName=pv
kubernetes.io/readwrite=ro
kubernetes.io/secret/part=c2VjcmV0
kubernetes.io/secret/password=bG9uZ2VyIHNlY3JldA==
kubernetes.io/secret/user=bWU=
kubernetes.io/serviceAccount.name=default
share=//nas/x`
	if got := sorted(o.all); got != want {
		t.Errorf("options:\n%s\nwant:\n%s", got, want)
	}
	if got := o.hide("longer secret, secret, bG9uZ2VyIHNlY3JldA==, me"); got != "***, ***, ***, me" {
		t.Errorf("hidden: %s", got)
	}
	if len(pv.Spec.FlexVolume.Options) != 1 {
		t.Errorf("the API object was changed: %v", pv.Spec.FlexVolume.Options)
	}
	if got := sorted(d.plainOptions().all); strings.Contains(got, "secret") || strings.Contains(got, "pod.name") {
		t.Errorf("options of other calls: %s", got)
	}
}

// TestScriptArguments: an argument that cmd.exe would read as more than text does not reach a script.
func TestScriptArguments(t *testing.T) {
	if i := unsafeForScript([]string{"mount", `C:\var\lib\kubelet\pods\u\volumes\a~b\v`}); i != -1 {
		t.Errorf("argument %d is refused", i)
	}
	if i := unsafeForScript([]string{"mount", `C:\R&D`}); i != 1 {
		t.Errorf("argument %d is refused, want 1", i)
	}
}
