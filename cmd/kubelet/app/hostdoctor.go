package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"

	"github.com/winkube/winkube/pkg/clientset"
	"github.com/winkube/winkube/pkg/command"
	"github.com/winkube/winkube/pkg/daemon"
	"github.com/winkube/winkube/pkg/docker"
	"github.com/winkube/winkube/pkg/doctor"
	"github.com/winkube/winkube/pkg/host"
	"github.com/winkube/winkube/pkg/kubeclient"
	"github.com/winkube/winkube/pkg/learn"
	"github.com/winkube/winkube/pkg/network"
	netdoctor "github.com/winkube/winkube/pkg/network/doctor"
	"github.com/winkube/winkube/pkg/nodejoin"
	"github.com/winkube/winkube/pkg/otherproxy"
	"github.com/winkube/winkube/pkg/report"
)

// hostDoctorOptions are the flags of `kubelet doctor`: those of `kubelet network doctor`, and more for the rest of the host.
type hostDoctorOptions struct {
	doctorOptions
	kubeconfig, rootDir, infraImage string
	config                          string
	file, recordImage               string // of a recording
	clusterDNS                      []string
	clusterDomain                   string
}

// newHostDoctorCommand returns `kubelet doctor`.
func newHostDoctorCommand(out io.Writer) *cobra.Command {
	o, moving := &hostDoctorOptions{}, false
	command := &cobra.Command{
		Use:   "doctor",
		Short: "Says what is wrong with this host as a node and how to repair it, without touching the host",
		Long: "Says what is wrong with this host as a node and how to repair it, without touching the host: system, services, Docker, disks, clock,\n" +
			"rules of another kube-proxy, and the pods' network as `kubelet network doctor` does. Give the kubelet's flags.\n" +
			"With --record it changes the host for some minutes instead, undoes everything, and records what the host answered.\n" +
			"With --migrate it prints the configuration of another kubelet for this one instead: of that which runs here, or whose flags follow after --.",
		Args: func(command *cobra.Command, args []string) error {
			if moving && command.ArgsLenAtDash() == 0 {
				return nil
			}
			return cobra.NoArgs(command, args)
		},
	}
	o.add(command.Flags())
	command.Flags().StringVar(&o.file, "record", "", "new `file` for a recording of this host: makes the pod network, a container and what a service needs, removes them again, and records all answers")
	command.Flags().StringVar(&o.recordImage, "record-image", "", "`image` of the recording's container; default: the pause image, or the smallest that fits this host")
	command.Flags().BoolVar(&moving, "migrate", false, "print the configuration of another kubelet, and of cri-dockerd, as this kubelet takes it: a file whose comments have the flags and what is left out")
	command.RunE = func(command *cobra.Command, args []string) error {
		if moving {
			return migrateFrom(args, out)
		}
		if command.Flags().Changed("record") {
			return o.record(out)
		}
		if o.recordImage != "" {
			return fmt.Errorf("--record-image=%s: it is for --record, which is missing", o.recordImage)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		symptoms, err := o.symptoms(ctx)
		if err != nil {
			return err
		}
		return printed(out, doctor.Diagnose(symptoms))
	}
	return command
}

// add declares the flags.
func (o *hostDoctorOptions) add(fs *pflag.FlagSet) {
	o.doctorOptions.add(fs)
	fs.StringVar(&o.kubeconfig, "kubeconfig", "", "`file` by which the API server is asked for its clock and version, and for pods of another proxy")
	fs.StringVar(&o.config, "config", "", "the same as the kubelet's: the `file` whose cgroupDriver is compared with Docker's")
	fs.StringVar(&o.rootDir, "root-dir", defaultRootDir(), "the same as the kubelet's")
	fs.StringVar(&o.infraImage, "pod-infra-container-image", defaultInfraImage, "the same as the kubelet's")
	fs.StringSliceVar(&o.clusterDNS, "cluster-dns", nil, "`addresses` of the cluster's DNS; empty: detected, as the kubelet does")
	fs.StringVar(&o.clusterDomain, "cluster-domain", "", "`domain` of the cluster; empty: detected, as the kubelet does")
}

// printed prints findings; it returns an error if there are faults.
func printed(out io.Writer, findings []netdoctor.Finding) error {
	faults := 0
	for _, f := range findings {
		fmt.Fprint(out, f)
		if f.Fault {
			faults++
		}
	}
	if faults > 0 {
		return fmt.Errorf("faults found: %d", faults)
	}
	return nil
}

// symptoms reads the host.
func (o *hostDoctorOptions) symptoms(ctx context.Context) (doctor.Symptoms, error) {
	facts, err := host.Read()
	if err != nil {
		return doctor.Symptoms{}, err
	}
	s := doctor.Symptoms{Platform: platformOf(facts), Facts: facts, InfraName: o.infraImage}
	s.Elevated, _ = host.Elevated()
	engine, err := docker.New(docker.Config{Host: o.endpoint, Node: facts.Hostname, Platform: s.Platform, CallTimeout: 10 * time.Second})
	if err != nil {
		return s, fmt.Errorf("--docker-endpoint=%s: %w", o.endpoint, err)
	}
	if s.Engine, s.EngineErr = engine.Client.Info(ctx); s.EngineErr == nil {
		var found bool
		if s.Infra, found, s.InfraErr = engine.Images.Lookup(ctx, o.infraImage); s.InfraErr == nil && !found {
			s.InfraErr = errors.New("no such image")
		}
	}
	if s.Left, err = engine.Containers.OfOthers(ctx); err != nil && s.EngineErr == nil {
		s.Unread = append(s.Unread, "containers of other kubelets: "+err.Error())
	}
	if s.CgroupDriver, err = cgroupDriver(o.config, s.Platform.OS); err != nil {
		return s, err
	}
	images, err := engine.Usage.ImageRoot(ctx)
	if err != nil && s.EngineErr == nil {
		s.Unread = append(s.Unread, "where the engine keeps images: "+err.Error())
	}
	for _, d := range disks(o.rootDir, s.Engine.Root, images) {
		if d.Disk, err = host.DiskUsage(existing(d.Path)); err != nil {
			s.Unread = append(s.Unread, err.Error())
			continue
		}
		s.Disks = append(s.Disks, d)
	}
	if o.kubeconfig != "" {
		s.Server = askServer(ctx, o.kubeconfig)
		known, err := o.askCluster(ctx, s.Platform.OS == "windows")
		if err != nil {
			s.Unread = append(s.Unread, "cluster settings: "+err.Error())
		}
		s.Cluster = known.Lines
		if len(o.services) == 0 {
			for _, p := range known.Services {
				o.services = append(o.services, p.String())
			}
		}
	}
	doctor.Examine(ctx, &s, command.New())
	s.Other = lookForOtherProxy(ctx, s.Platform.OS == "windows")
	other, asked := nodejoin.OtherProxy(ctx, o.kubeconfig)
	pods, err := o.doctorOptions.symptoms(ctx)
	if err != nil {
		s.Unread = append(s.Unread, "the pods' network: "+err.Error())
	} else {
		pods.Stopped = nil // the check of the whole host covers more services
		s.Network = netdoctor.Diagnose(pods)
	}
	if asked {
		s.Network = append(s.Network, other)
	}
	return s, nil
}

// cgroupDriver reads the cgroup driver from a file of the kubelet's configuration; "": none.
func cgroupDriver(file, system string) (string, error) {
	o := &options{}
	if err := o.readFiles(file, "", system); err != nil {
		return "", err
	}
	return o.config.CgroupDriver, nil
}

// disks are the places whose disks are checked: the agent's, the engine's, and that of the images where containerd keeps them. "": unknown.
func disks(agent, engine, images string) []doctor.Disk {
	places := []doctor.Disk{{What: "the agent's directory", Path: agent}}
	switch {
	case engine == "":
		return places
	case images == "" || images == engine:
		return append(places, doctor.Disk{What: "the engine's images and containers", Path: engine})
	}
	return append(places, doctor.Disk{What: "the engine's logs and volumes", Path: engine}, doctor.Disk{What: "containerd's images and containers", Path: images})
}

// lookForOtherProxy looks for rules of another kube-proxy. On Windows only the running proxy's report says which load
// balancers are its own.
func lookForOtherProxy(ctx context.Context, windows bool) otherproxy.Found {
	var facts report.Facts
	file, err := report.FactsOfHost(windows)
	if err == nil {
		facts, err = file.Read()
	}
	found := otherproxy.Look(ctx, facts.Balancers)
	if err != nil {
		found.Unread = append(found.Unread, err.Error())
	}
	return found
}

// askCluster learns the same facts about the cluster as the kubelet, with the same credentials.
func (o *hostDoctorOptions) askCluster(ctx context.Context, windows bool) (known learn.Known, err error) {
	mode := network.Mode(o.mode)
	flags := learn.Flags{Domain: strings.Trim(o.clusterDomain, "."), Doctor: true, Windows: windows, NoRanges: mode == network.CNI || mode == network.External || os.Getenv("CONTAINER_NETWORK") != ""}
	if flags.Services, err = parsePrefixes("service-cidr", o.services); err != nil {
		return known, err
	}
	if flags.Pods, err = parsePrefixes("cluster-cidr", o.keep); err != nil {
		return known, err
	}
	for _, text := range o.clusterDNS {
		addr, err := parseAddr("cluster-dns", text)
		if err != nil {
			return known, err
		}
		flags.DNS = append(flags.DNS, addr)
	}
	config, err := kubeclient.Config(kubeclient.Options{Kubeconfig: o.kubeconfig, UserAgent: daemon.UserAgent("kubelet")})
	if err != nil {
		return known, err
	}
	client, err := clientset.NewForConfig(config)
	if err != nil {
		return known, err
	}
	services, err := client.Services(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return known, err
	}
	var seen learn.Seen
	for i := range services.Items {
		seen.Services = append(seen.Services, &services.Items[i])
	}
	file, err := report.FactsOfHost(windows)
	if err == nil {
		seen.Reported, err = file.Read()
	}
	known = learn.Decide(flags, seen)
	if flags.Domain == "" && len(known.DNS) > 0 {
		// Asked again: at the end of node join, the proxy that leads to the cluster DNS has just started.
		_ = wait.PollUntilContextTimeout(ctx, 500*time.Millisecond, 10*time.Second, true, func(ctx context.Context) (bool, error) {
			ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
			defer cancel()
			domain, asked := learn.Ask(ctx, known.DNS[0], known.APIServer)
			seen.Domain = domain
			return asked == nil, nil
		})
		known = learn.Decide(flags, seen)
	}
	return known, err
}

// askServer reads the API server's version and clock.
func askServer(ctx context.Context, kubeconfig string) doctor.Server {
	s := doctor.Server{Asked: true, Ours: daemon.Kubernetes}
	fail := func(err error) doctor.Server { s.Err = err; return s }
	config, err := kubeclient.Config(kubeclient.Options{Kubeconfig: kubeconfig})
	if err != nil {
		return fail(err)
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return fail(err)
	}
	base, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return fail(err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, base.JoinPath("/version").String(), nil)
	if err != nil {
		return fail(err)
	}
	before := time.Now()
	response, err := client.Do(request)
	if err != nil {
		return fail(err)
	}
	defer response.Body.Close()
	now := before.Add(time.Since(before) / 2)
	var version struct{ GitVersion string }
	if err := json.NewDecoder(io.LimitReader(response.Body, 1<<20)).Decode(&version); err != nil {
		return fail(fmt.Errorf("%s: %s: %w", request.URL, response.Status, err))
	}
	theirs, err := http.ParseTime(response.Header.Get("Date"))
	if err != nil {
		return fail(fmt.Errorf("its answer has no date: %w", err))
	}
	s.Version, s.Ahead = version.GitVersion, theirs.Sub(now)
	return s
}

// existing is path, or its nearest existing parent: the kubelet creates the rest.
func existing(path string) string {
	for {
		if _, err := os.Stat(path); err == nil || path == filepath.Dir(path) {
			return path
		}
		path = filepath.Dir(path)
	}
}
