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
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"

	"github.com/winkube/winkube/pkg/command"
	"github.com/winkube/winkube/pkg/daemon"
	"github.com/winkube/winkube/pkg/docker"
	"github.com/winkube/winkube/pkg/doctor"
	"github.com/winkube/winkube/pkg/host"
	"github.com/winkube/winkube/pkg/kubeclient"
	netdoctor "github.com/winkube/winkube/pkg/network/doctor"
)

// hostDoctorOptions are the flags of `kubelet doctor`: those of `kubelet network doctor`, and what the rest of the host wants.
type hostDoctorOptions struct {
	doctorOptions
	kubeconfig, rootDir, infraImage string
}

// newHostDoctorCommand makes `kubelet doctor`.
func newHostDoctorCommand(out io.Writer) *cobra.Command {
	o := &hostDoctorOptions{}
	command := &cobra.Command{
		Use:   "doctor",
		Short: "Says what is wrong with this host as a node and how to repair it, without touching the host",
		Long: "Says what is wrong with this host as a node and how to repair it, without touching the host: system, services, Docker, disks, clock,\n" +
			"and the pods' network as `kubelet network doctor` does. Give the kubelet's flags.",
		Args: cobra.NoArgs,
	}
	o.doctorOptions.add(command.Flags())
	command.Flags().StringVar(&o.kubeconfig, "kubeconfig", "", "`file` by which the API server is asked for its clock and version")
	command.Flags().StringVar(&o.rootDir, "root-dir", defaultRootDir(), "as of the kubelet")
	command.Flags().StringVar(&o.infraImage, "pod-infra-container-image", defaultInfraImage, "as of the kubelet")
	command.RunE = func(*cobra.Command, []string) error {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		symptoms, err := o.symptoms(ctx)
		if err != nil {
			return err
		}
		return report(out, doctor.Diagnose(symptoms))
	}
	return command
}

// report prints findings; faults are an error.
func report(out io.Writer, findings []netdoctor.Finding) error {
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
	for _, d := range []doctor.Disk{{What: "the agent's directory", Path: o.rootDir}, {What: "the engine's images and containers", Path: s.Engine.Root}} {
		if d.Path == "" {
			continue
		}
		if d.Disk, err = host.DiskUsage(existing(d.Path)); err != nil {
			s.Unread = append(s.Unread, err.Error())
			continue
		}
		s.Disks = append(s.Disks, d)
	}
	if o.kubeconfig != "" {
		s.Server = askServer(ctx, o.kubeconfig)
	}
	doctor.Examine(ctx, &s, command.New())
	pods, err := o.doctorOptions.symptoms(ctx)
	if err != nil {
		s.Unread = append(s.Unread, "the pods' network: "+err.Error())
	} else {
		pods.Stopped = nil // the whole host was asked for more services
		s.Network = netdoctor.Diagnose(pods)
	}
	return s, nil
}

// askServer reads the version and clock of the API server.
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

// existing is path, or the directory above it that is there already: the kubelet makes the rest.
func existing(path string) string {
	for {
		if _, err := os.Stat(path); err == nil || path == filepath.Dir(path) {
			return path
		}
		path = filepath.Dir(path)
	}
}
