package volume

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// access is what the pod's containers may do with a directory on Windows.
type access string

const (
	accessNone   access = ""
	accessRead   access = "0x1200a9" // read and execute
	accessModify access = "0x1301bf"
)

// Accounts of Windows' containers (moby pkg/idtools), and BUILTIN\Users, of which accounts that an image makes are members.
const (
	containerAdministrator = "S-1-5-93-2-1"
	containerUser          = "S-1-5-93-2-2"
	builtinUsers           = "BU"
)

// sddl is a protected access list: SYSTEM and Administrators may do everything, the pod's accounts what is granted, and nobody else of the
// host anything. It is inherited by all that is in the directory. (Microsoft, "Security Descriptor String Format")
func sddl(granted access, accounts []string) string {
	var b strings.Builder
	b.WriteString("D:P(A;OICI;FA;;;SY)(A;OICI;FA;;;BA)")
	for _, a := range accounts {
		if granted != accessNone {
			fmt.Fprintf(&b, "(A;OICI;%s;;;%s)", granted, a)
		}
	}
	return b.String()
}

// accounts are those that p's containers run as: the containers' own two, others by their SID. Accounts that only an image knows are
// Users, which is why p has to name them (windowsOptions.runAsUserName).
func accounts(p *v1.Pod) []string {
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

// protect gives dir an access list of its own on Windows. accounts: whom granted is for; none: every account of a container, those that an
// image makes among them.
func (m *Manager) protect(dir string, granted access, accounts ...string) error {
	if m.setAccess == nil {
		return nil
	}
	if len(accounts) == 0 {
		accounts = []string{containerAdministrator, containerUser, builtinUsers}
	}
	if err := m.setAccess(dir, sddl(granted, accounts)); err != nil {
		return fmt.Errorf("cannot set who may use %s: %w", dir, err)
	}
	return nil
}
