package cni

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// The test program also acts as the fake plugin, and as an agent that is killed.
const (
	agentVariable = "WINKUBE_CNI_AGENT" // conf, bin and state directory
	childVariable = "WINKUBE_CNI_CHILD"
)

func TestMain(m *testing.M) {
	switch {
	case os.Getenv(childVariable) != "":
		<-time.After(time.Hour)
	case os.Getenv("CNI_COMMAND") != "":
		if err := play(os.Getenv("CNI_COMMAND")); err != nil {
			json.NewEncoder(os.Stdout).Encode(map[string]any{"code": 100, "msg": err.Error()})
			os.Exit(1)
		}
	case os.Getenv(agentVariable) != "":
		dirs := strings.Split(os.Getenv(agentVariable), ",")
		p, err := New(Config{ConfDir: dirs[0], BinDirs: dirs[1:2], StateDir: dirs[2]})
		if err == nil {
			_, _, err = p.Load(context.Background())
		}
		if err == nil {
			_, err = p.Add(context.Background(), attachment("c1"))
		}
		fmt.Fprintln(os.Stderr, "the agent was to be killed:", err)
		os.Exit(1)
	default:
		os.Exit(m.Run())
	}
}

// spawn starts this program again, with one more variable.
func spawn(variable string) (*os.Process, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return os.StartProcess(exe, []string{exe}, &os.ProcAttr{Env: append(os.Environ(), variable), Files: []*os.File{nil, os.Stdout, os.Stderr}})
}

// input is what a plugin reads.
type input struct {
	CNIVersion, Name, Type, Leases, Behave string
	Capabilities                           map[string]bool
	RuntimeConfig                          map[string]json.RawMessage
	PrevResult                             json.RawMessage
	Valid                                  []struct{ ContainerID string } `json:"cni.dev/valid-attachments"`
}

// play is the fake plugin: it keeps a lease file for each container, and refuses calls that the specification does not allow.
func play(verb string) error {
	data, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	var in input
	if err := json.Unmarshal(data, &in); err != nil {
		return err
	}
	second := in.Type == "second"
	id, netns := os.Getenv("CNI_CONTAINERID"), os.Getenv("CNI_NETNS")
	lease := filepath.Join(in.Leases, id)
	if why := wrong(verb, in, id, netns); why != "" {
		return fmt.Errorf("bad call: %s", why)
	}
	switch verb {
	case "ADD":
		if second {
			_, err = os.Stdout.Write(in.PrevResult)
			return err
		}
		if in.Leases == "" { // it keeps nothing, least of all beside the sources
			return answer(in, netns)
		}
		file, err := os.OpenFile(lease, os.O_CREATE|os.O_EXCL, 0o644)
		if err != nil {
			return err
		}
		file.Close()
		return answer(in, netns)
	case "DEL":
		if in.Leases == "" {
			return nil
		}
		if err := os.WriteFile(lease+".netns", []byte(netns), 0o644); err != nil { // for who wants to know
			return err
		}
		if err := os.Remove(lease); err != nil && !os.IsNotExist(err) {
			return err
		}
	case "CHECK":
		if _, err := os.Stat(lease); err != nil {
			return fmt.Errorf("the lease is lost")
		}
	case "STATUS":
		if in.Behave == "starting" {
			return fmt.Errorf("still starting")
		}
	case "GC":
		valid := map[string]bool{}
		for _, v := range in.Valid {
			valid[v.ContainerID] = true
		}
		entries, _ := os.ReadDir(in.Leases)
		for _, e := range entries {
			if !valid[e.Name()] {
				os.Remove(filepath.Join(in.Leases, e.Name()))
			}
		}
	}
	return nil
}

// wrong says what is wrong with a call.
func wrong(verb string, in input, id, netns string) string {
	switch {
	case in.Name == "" || in.Type != strings.TrimSuffix(filepath.Base(os.Args[0]), ".exe") || in.CNIVersion == "":
		return fmt.Sprintf("configuration %+v", in)
	case os.Getenv("CNI_PATH") == "":
		return "no CNI_PATH"
	case verb == "GC" || verb == "STATUS":
		return ""
	case id == "" || os.Getenv("CNI_IFNAME") != "eth0":
		return fmt.Sprintf("container %q, interface %q", id, os.Getenv("CNI_IFNAME"))
	case verb != "DEL" && netns == "":
		return "no CNI_NETNS"
	case !strings.Contains(os.Getenv("CNI_ARGS"), "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web;K8S_POD_INFRA_CONTAINER_ID="):
		return "CNI_ARGS " + os.Getenv("CNI_ARGS")
	case in.Capabilities["portMappings"] && string(in.RuntimeConfig["portMappings"]) != `[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}]`:
		return "portMappings " + string(in.RuntimeConfig["portMappings"])
	case in.Capabilities["bandwidth"] && string(in.RuntimeConfig["bandwidth"]) != `{"ingressRate":1000000,"ingressBurst":100}`:
		return "bandwidth " + string(in.RuntimeConfig["bandwidth"])
	case in.Capabilities["dns"] && string(in.RuntimeConfig["dns"]) != `{"servers":["10.96.0.10"],"searches":["svc.cluster.local"],"options":["ndots:5"]}`:
		return "dns " + string(in.RuntimeConfig["dns"])
	case len(in.Capabilities) == 0 && len(in.RuntimeConfig) > 0:
		return "runtimeConfig for a plugin without capabilities"
	case verb == "CHECK" && in.PrevResult == nil:
		return "no prevResult"
	}
	return ""
}

// answer prints the result of ADD, or misbehaves.
func answer(in input, netns string) error {
	own := `{"address": "10.1.0.7/24", "interface": 1, "gateway": "10.1.0.1"}`
	switch in.Behave {
	case "hang":
		child, err := spawn(childVariable + "=1")
		if err != nil {
			return err
		}
		path := filepath.Join(in.Leases, "child.pid")
		if err := os.WriteFile(path+".new", fmt.Append(nil, child.Pid), 0o644); err != nil {
			return err
		}
		if err := os.Rename(path+".new", path); err != nil {
			return err
		}
		<-time.After(time.Hour)
	case "rubbish":
		fmt.Println("Segmentation fault (core dumped)")
		return nil
	case "nothing":
		return nil
	case "fail":
		return fmt.Errorf("no address left")
	case "die":
		fmt.Fprintln(os.Stderr, "out of memory")
		os.Exit(3)
	case "noip":
		own = `{"address": "10.1.0.1/24", "interface": 0}`
	case "dual":
		own += `, {"address": "10.1.0.1/24", "interface": 0}, {"address": "fd00::7/64", "interface": 1}`
	case "windows":
		_, err := fmt.Printf(`{"cniVersion": %q, "ips": [{"version": "4", "address": "10.1.0.7/24"}]}`, in.CNIVersion)
		return err
	}
	_, err := fmt.Printf(`{"cniVersion": %q, "interfaces": [{"name": "bridge"}, {"name": "eth0", "sandbox": %q}], "ips": [%s]}`, in.CNIVersion, netns, own)
	return err
}
