package rig

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/winkube/winkube/test/output"
)

const (
	wine       = "/usr/lib/wine/wine64" // Debian's package installs the loader there, outside PATH
	wineserver = "/usr/lib/wine/wineserver64"
	compiler   = "x86_64-w64-mingw32-gcc"

	user = "winkube" // as programs in the prefix see it
	// unprivileged is the uid and gid of Wine if root runs the rig. No Debian user has them.
	unprivileged = 64242
)

// kept are the capabilities of root that Wine keeps: to read this repository below a directory that only root may enter, and to listen on
// ports below 1024, as any user may on Windows.
var kept = []struct {
	name   string // its name in setpriv
	number int    // its number in capabilities(7)
}{{"dac_read_search", 2}, {"net_bind_service", 10}}

// setpcap is the capability to set securebits, from capabilities(7).
const setpcap = 8

// installed returns an error that names the missing package.
func installed() error {
	for _, need := range []struct{ program, pkg string }{
		{wine, "wine64"}, {wineserver, "wine64"}, {compiler, "gcc-mingw-w64-x86-64"}, {"setpriv", "util-linux"},
	} {
		if _, err := exec.LookPath(need.program); err != nil {
			return fmt.Errorf("cannot run Windows programs: %s is missing; run hack/ensure-packages.sh wine or apt-get install %s", need.program, need.pkg)
		}
	}
	return nil
}

// account is the user that Wine runs as.
type account struct {
	uid      int
	switched bool // we are root and Wine is not
	rights   []string
	// sees says that access(2) respects those capabilities, as open(2) does. By default it ignores them for users other than root, and
	// libraries that check before they open find nothing below a directory that only root may enter.
	sees bool
}

func who() (account, error) {
	if uid := os.Geteuid(); uid != 0 {
		return account{uid: uid}, nil
	}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return account{}, fmt.Errorf("cannot read the capabilities: %w", err)
	}
	_, rest, _ := strings.Cut(string(status), "\nCapEff:")
	line, _, _ := strings.Cut(rest, "\n")
	held, err := strconv.ParseUint(strings.TrimSpace(line), 16, 64)
	if err != nil {
		return account{}, fmt.Errorf("cannot read the capabilities: %w", err)
	}
	a := account{uid: unprivileged, switched: true, sees: held&(1<<setpcap) != 0}
	for _, right := range kept {
		if held&(1<<right.number) != 0 {
			a.rights = append(a.rights, "+"+right.name)
		}
	}
	return a, nil
}

// become returns the command line prefix that runs a program as this account, in that network namespace.
func (a account) become(netns string) []string {
	var argv []string
	if netns != "" {
		argv = append(argv, "nsenter", "--net=/run/netns/"+netns, "--")
	}
	if a.switched {
		id := strconv.Itoa(a.uid)
		argv = append(argv, "setpriv", "--reuid="+id, "--regid="+id, "--clear-groups")
		if rights := strings.Join(a.rights, ","); rights != "" {
			argv = append(argv, "--inh-caps="+rights, "--ambient-caps="+rights)
			if a.sees {
				argv = append(argv, "--securebits=+no_setuid_fixup")
			}
		}
		argv = append(argv, "--")
	}
	return argv
}

// own gives a directory that we created to the account.
func (a account) own(path string) error {
	if !a.switched {
		return nil
	}
	return os.Chown(path, a.uid, a.uid)
}

// fontconfig hides the machine's fonts and their cache from a prefix. Otherwise Wine's libraries would read the fonts, and print an
// error for each program if they cannot write the cache. Wine has the fonts that it needs.
const (
	fontconfigFile = "fonts.conf"
	fontconfig     = `<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "urn:fontconfig:fonts.dtd">
<fontconfig><cachedir prefix="xdg">fontconfig</cachedir></fontconfig>
`
)

// environment returns the only variables that programs inherit. All directories for user files are in the prefix.
func environment(dir string) []string {
	home := filepath.Join(dir, "home")
	return []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + home, "XDG_CACHE_HOME=" + filepath.Join(home, ".cache"),
		"FONTCONFIG_FILE=" + filepath.Join(dir, fontconfigFile), "USER=" + user, "LANG=C.UTF-8",
		"WINEPREFIX=" + dir, "WINEDEBUG=-all", "WINEDLLOVERRIDES=mscoree,mshtml="}
}

// stopServer stops the wineserver of a prefix, if it runs, and with it every program.
func stopServer(ctx context.Context, as account, dir string) error {
	for _, flag := range []string{"-k", "-w"} {
		argv := append(as.become(""), wineserver, flag)
		cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
		cmd.Env = environment(dir)
		if said, err := output.Of(cmd); err != nil && cmd.ProcessState.ExitCode() != 1 { // 1 means that none runs
			return fmt.Errorf("cannot end Wine in %s: %w: %s", dir, err, said)
		}
	}
	return nil
}
