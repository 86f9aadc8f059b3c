package kubeclient

import (
	"context"
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/clientset"
)

// ErrNoVersion means that the server's response has no Kubernetes version.
var ErrNoVersion = errors.New("no version of Kubernetes")

// maxSkew is how many minor versions a node may be older (Kubernetes' version skew policy).
const maxSkew = 3

// CheckSkew says why a node agent of version ours is incompatible with an API server of version server; both like v1.36.3. nil: they are
// compatible.
func CheckSkew(server, ours string) error {
	var theirs, own int
	if _, err := fmt.Sscanf(server, "v1.%d", &theirs); err != nil {
		return fmt.Errorf("the API server's version is %q: %w", server, ErrNoVersion)
	}
	if _, err := fmt.Sscanf(ours, "v1.%d", &own); err != nil {
		return fmt.Errorf("this program's version is %q: %w", ours, ErrNoVersion)
	}
	if own > theirs || theirs-own > maxSkew {
		return fmt.Errorf("the API server has version %s, and this program has %s: a node may be up to three minor versions older than its API server, never newer", server, ours)
	}
	return nil
}

// askTimeout limits AskSkew.
const askTimeout = 10 * time.Second

// AskSkew is CheckSkew with the version that config's API server reports. No answer is an error too.
func AskSkew(config *rest.Config, ours string) error {
	config = rest.CopyConfig(config)
	config.Timeout = askTimeout
	client, err := clientset.NewForConfig(config)
	if err != nil {
		return err
	}
	info, err := client.ServerVersion()
	if err != nil {
		return fmt.Errorf("cannot read the API server's version: %s", oneLine(err))
	}
	return CheckSkew(info.GitVersion, ours)
}

// versionEvery is the interval of FollowVersion's requests: control planes are upgraded while nodes run.
const versionEvery = time.Hour

// VersionReader is the part of a clientset.Interface that FollowVersion uses.
type VersionReader interface {
	ServerVersion() (*version.Info, error)
}

// FollowVersion logs the API server's version and ours, immediately and after each change, until ctx ends. If they are incompatible, it
// calls tell with an Event.
func FollowVersion(ctx context.Context, server VersionReader, ours string, clk clock.WithTicker, tell func(kind, reason, message string)) {
	ticker := clk.NewTicker(versionEvery)
	defer ticker.Stop()
	for last := ""; ctx.Err() == nil; {
		if info, err := server.ServerVersion(); err != nil {
			klog.V(2).InfoS("Cannot read the API server's version", "err", err)
		} else if info.GitVersion != last {
			last = info.GitVersion
			if err := CheckSkew(last, ours); err != nil {
				klog.InfoS("Warning: the API server's version is incompatible with this program's", "reason", err.Error())
				tell(v1.EventTypeWarning, "VersionSkew", err.Error())
			} else {
				klog.InfoS("The API server's version is compatible with this program's", "server", last, "ours", ours)
			}
		}
		select {
		case <-ctx.Done():
		case <-ticker.C():
		}
	}
}
