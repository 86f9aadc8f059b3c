package lab

import (
	"context"
	"fmt"
	"io"
	"net"
	"os/exec"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/winkube/winkube/test/output"
)

// Gateway connects the machine and the cluster. It runs in the control plane's network namespace and forwards
// connections of listener, which was opened in the machine's namespace, to the API server at to. It also maintains the
// control plane's routes to pods, because the API server dials pods for its proxy, webhooks and aggregated APIs. It
// returns when ctx ends.
func Gateway(ctx context.Context, listener net.Listener, to, kubeconfig string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	routes := map[string]string{} // next hop by pod CIDR; used only by the informer's goroutine
	factory := informers.NewSharedInformerFactory(client, 0)
	nodes := factory.Core().V1().Nodes().Informer()
	if _, err := nodes.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { addRoutes(ctx, routes, obj.(*v1.Node)) },
		UpdateFunc: func(_, obj any) { addRoutes(ctx, routes, obj.(*v1.Node)) },
	}); err != nil {
		return err
	}
	factory.Start(ctx.Done())
	go func() {
		<-ctx.Done()
		listener.Close()
	}()
	for {
		conn, err := listener.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("cannot accept connections: %w", err)
		}
		go forward(conn, to)
	}
}

// addRoutes routes a Node's pod ranges to it. The range of a removed node keeps its route until another node gets the
// range.
func addRoutes(ctx context.Context, routes map[string]string, node *v1.Node) {
	for _, cidr := range node.Spec.PodCIDRs {
		hop := ""
		for _, address := range node.Status.Addresses {
			if address.Type == v1.NodeInternalIP && hop == "" && strings.Contains(address.Address, ":") == strings.Contains(cidr, ":") {
				hop = address.Address
			}
		}
		if hop == "" || routes[cidr] == hop {
			continue
		}
		said, err := output.Of(exec.CommandContext(ctx, "ip", "route", "replace", cidr, "via", hop))
		fmt.Printf("route %s via %s: %v %s\n", cidr, hop, err, said)
		if err == nil {
			routes[cidr] = hop
		}
	}
}

// forward connects conn with a new connection to addr; each direction closes separately.
func forward(conn net.Conn, addr string) {
	defer conn.Close()
	upstream, err := net.DialTimeout("tcp", addr, 20*time.Second)
	if err != nil {
		return
	}
	defer upstream.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(upstream, conn)
		_ = upstream.(*net.TCPConn).CloseWrite()
	}()
	_, _ = io.Copy(conn, upstream)
	_ = conn.(*net.TCPConn).CloseWrite()
	<-done
}
