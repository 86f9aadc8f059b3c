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

// Gateway is the one program between the machine and the cluster. It runs in the control plane's network and hands connections of
// listener, which was opened in the machine's own, to the API server at to. It also keeps the control plane's routes to the nodes'
// pods, since the API server dials pods for its proxy, for webhooks and for aggregated APIs. It returns when ctx ends.
func Gateway(ctx context.Context, listener net.Listener, to, kubeconfig string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	routes := map[string]string{} // next hop by pod CIDR; touched by the informer's goroutine only
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

// addRoutes adds a route for a node's pod range to the node. The range of a removed node keeps its route until another node gets the range.
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

// forward joins a connection with one to addr, each direction closed on its own.
func forward(conn net.Conn, addr string) {
	defer conn.Close()
	upstream, err := net.DialTimeout("tcp", addr, 5*time.Second)
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
