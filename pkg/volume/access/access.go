// Package access decides who may use the directories of volumes: an access list on Windows, the pod's fsGroup on Linux.
package access

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/pod"
)

// Right is what the pod's containers may do with a directory on Windows.
type Right string

// The rights that containers get.
const (
	None   Right = ""
	Read   Right = "0x1200a9" // read and execute
	Modify Right = "0x1301bf"
)

// Control gives directories to pods.
type Control struct {
	// Platform is the system that the pods run on: Windows has access lists, Linux has groups.
	Platform pod.Platform
	// Set replaces the access list of a file or directory by one in SDDL. It is called for pods on Windows only.
	Set func(path, sddl string) error
}

// New makes the Control of this host.
func New(platform pod.Platform) Control { return Control{Platform: platform, Set: setList} }

// Protect gives dir an access list on Windows; it does nothing on Linux. accounts are those that get the right; none means every account of a
// container, including those that an image makes.
func (c *Control) Protect(dir string, granted Right, accounts ...string) error {
	if c.Platform.OS != "windows" {
		return nil
	}
	if len(accounts) == 0 {
		accounts = []string{containerAdministrator, containerUser, builtinUsers}
	}
	if err := c.Set(dir, sddl(granted, accounts)); err != nil {
		return fmt.Errorf("cannot set who may use %s: %w", dir, err)
	}
	return nil
}

// Accounts of Windows' containers (moby pkg/idtools), and BUILTIN\Users, of which accounts that an image makes are members.
const (
	containerAdministrator = "S-1-5-93-2-1"
	containerUser          = "S-1-5-93-2-2"
	builtinUsers           = "BU"
)

// sddl is a protected access list: SYSTEM and Administrators may do everything, the pod's accounts what is granted, and other accounts of
// the host nothing. Everything in the directory inherits it. (Microsoft, "Security Descriptor String Format")
func sddl(granted Right, accounts []string) string {
	var b strings.Builder
	b.WriteString("D:P(A;OICI;FA;;;SY)(A;OICI;FA;;;BA)")
	for _, a := range accounts {
		if granted != None {
			fmt.Fprintf(&b, "(A;OICI;%s;;;%s)", granted, a)
		}
	}
	return b.String()
}

// Accounts are those that p's containers run as: the containers' own two, others by their SID. Accounts that only an image knows are
// Users, which is why p has to name them (windowsOptions.runAsUserName).
func Accounts(p *v1.Pod) []string {
	out := []string{containerAdministrator, containerUser}
	add := func(o *v1.WindowsSecurityContextOptions) {
		if o == nil || o.RunAsUserName == nil {
			return
		}
		account := builtinUsers
		switch name := strings.ToLower(*o.RunAsUserName); strings.TrimPrefix(strings.TrimPrefix(name, `user manager\`), `nt authority\`) {
		case "containeradministrator", "containeruser", "system", "local system":
			return
		case "network service":
			account = "NS"
		case "local service":
			account = "LS"
		}
		if !slices.Contains(out, account) {
			out = append(out, account)
		}
	}
	if sc := p.Spec.SecurityContext; sc != nil {
		add(sc.WindowsOptions)
	}
	for _, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
		if c.SecurityContext != nil {
			add(c.SecurityContext.WindowsOptions)
		}
	}
	return out
}
