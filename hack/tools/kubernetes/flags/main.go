// Command flags prints the flags of upstream's kubelet or kube-proxy, as its own code declares them: one line each with the
// name and, where it is not empty, the default. The lists are testdata of cmd/kubelet/app and cmd/kube-proxy/app:
//
//	go test -C hack/tools/kubernetes ./flags -update
package main

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	_ "k8s.io/component-base/logs/json/register" // adds flags
	"k8s.io/component-base/version/verflag"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app/options"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: flags kubelet|kube-proxy")
		os.Exit(2)
	}
	if err := list(os.Stdout, os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// list writes the flags of a program: those of Linux with defaults, then those that only Windows has.
func list(out io.Writer, program string) error {
	fs := pflag.NewFlagSet(program, pflag.ContinueOnError)
	var windows string // the file that declares flags of Windows
	switch program {
	case "kubelet":
		server, err := kubelet.NewKubeletServer()
		if err != nil {
			return err
		}
		server.AddFlags(fs)
		kubelet.AddGlobalFlags(fs)
		windows = "cmd/kubelet/app/options/osflags_windows.go"
	case "kube-proxy":
		proxy.NewOptions().AddFlags(fs)
		verflag.AddFlags(fs)
		for _, name := range []string{"boot_id_file", "machine_id_file"} { // it has these of cAdvisor; this program links more
			fs.AddGoFlag(flag.Lookup(name))
		}
		windows = "cmd/kube-proxy/app/init_windows.go"
	default:
		return fmt.Errorf("%q: want kubelet or kube-proxy", program)
	}
	fs.VisitAll(func(f *pflag.Flag) {
		if f.DefValue == "" || f.DefValue == "[]" {
			fmt.Fprintln(out, f.Name)
			return
		}
		fmt.Fprintln(out, f.Name, f.DefValue)
	})
	names, err := declared(windows)
	for _, name := range names {
		fmt.Fprintln(out, name)
	}
	return err
}

// declared returns the names of the flags that a file of upstream declares: the string that follows the variable in calls
// such as fs.BoolVar(&v, "name", ...). Windows' files do not compile here.
func declared(file string) ([]string, error) {
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes").Output()
	if err != nil {
		return nil, fmt.Errorf("cannot find the module k8s.io/kubernetes: %w", err)
	}
	parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join(strings.TrimSpace(string(dir)), file), nil, 0)
	if err != nil {
		return nil, err
	}
	var names []string
	ast.Inspect(parsed, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || len(call.Args) < 3 {
			return true
		}
		method, ok := call.Fun.(*ast.SelectorExpr)
		if !ok || !strings.HasSuffix(method.Sel.Name, "Var") {
			return true
		}
		if text, ok := call.Args[1].(*ast.BasicLit); ok && text.Kind == token.STRING {
			if name, err := strconv.Unquote(text.Value); err == nil {
				names = append(names, name)
			}
		}
		return true
	})
	slices.Sort(names)
	return names, nil
}
