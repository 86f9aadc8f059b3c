package plugins

import (
	"strings"
	"testing"
)

func TestEndpoint(t *testing.T) {
	const dir, sock = `D:\k\plugins_registry`, `C:\var\lib\kubelet\plugins\smb.csi.k8s.io\csi.sock`
	for named, want := range map[string]string{
		sock: sock,
		`C:\\var\\lib\\kubelet\\plugins\\smb.csi.k8s.io\\csi.sock`:        sock, // csi-driver-smb's manifest
		`C:/var/lib/kubelet/plugins/smb.csi.k8s.io/csi.sock`:              sock,
		`unix://C:\\var\\lib\\kubelet\\plugins\\smb.csi.k8s.io\\csi.sock`: sock,
		`unix:///C:/var/lib/kubelet/plugins/smb.csi.k8s.io/csi.sock`:      sock,
		`\\var\\lib\\kubelet\\plugins\\csi.vsphere.vmware.com\\csi.sock`:  `D:\var\lib\kubelet\plugins\csi.vsphere.vmware.com\csi.sock`,
		`/var/lib/kubelet/plugins/a/csi.sock`:                             `D:\var\lib\kubelet\plugins\a\csi.sock`,
		`unix:///csi/csi.sock`:                                            `D:\csi\csi.sock`,
		`\\.\pipe\csi`:                                                    "!named pipe",
		`npipe:////./pipe/csi`:                                            "!named pipe",
		`//./PIPE/csi`:                                                    "!named pipe",
		`csi.sock`:                                                        "!want the path of a Unix socket",
		`C:csi.sock`:                                                      "!want the path of a Unix socket",
		``:                                                                "!want the path of a Unix socket",
	} {
		got, err := endpoint(true, dir, named)
		if why, bad := strings.CutPrefix(want, "!"); bad {
			if err == nil || !strings.Contains(err.Error(), why) {
				t.Errorf("%s: %q, %v, want %q", named, got, err, why)
			}
		} else if got != want || err != nil {
			t.Errorf("%s: %q, %v, want %q", named, got, err, want)
		}
	}
	if got, err := endpoint(false, "/k", `\\.\pipe\x`); got != `\\.\pipe\x` || err != nil {
		t.Errorf("on Linux: %q, %v", got, err)
	}
	if got, err := endpoint(true, "/k", `/x`); got != `C:\x` || err != nil {
		t.Errorf("without a drive: %q, %v", got, err)
	}
}
