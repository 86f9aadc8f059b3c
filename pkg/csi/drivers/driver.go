package drivers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	pb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/csi"
	"github.com/winkube/winkube/pkg/plugins"
)

const (
	// callTime is how long a driver may take for a call, as upstream's kubelet lets it.
	callTime = 2 * time.Minute
	// idleTime is after how long without calls a connection is closed: the next call then finds the socket of a driver that has made another.
	idleTime = time.Minute
	// connectTime is how long one attempt to connect may take. Without it an attempt has only gRPC's pause before the next.
	connectTime = 10 * time.Second
	// longestName of a driver. Source: the CSI specification, GetPluginInfoResponse.
	longestName = 63
	// longestNodeID in a CSINode. Source: kubernetes pkg/apis/storage/validation/validation.go.
	longestNodeID = 256
)

// info is what a driver says of this node.
type info struct {
	nodeID   string
	topology map[string]string
	most     int64 // volumes; 0: no limit
}

func (i info) equal(other info) bool {
	return i.nodeID == other.nodeID && i.most == other.most && maps.Equal(i.topology, other.topology)
}

// keys are those of the topology, sorted.
func (i info) keys() []string { return slices.Sorted(maps.Keys(i.topology)) }

// driver is one registered driver. It implements csi.Driver.
type driver struct {
	name string
	conn *grpc.ClientConn
	node pb.NodeClient
	has  map[pb.NodeServiceCapability_RPC_Type]bool
	info info // of it only most changes, with the Registry's lock
	id   string
}

// Name implements csi.Driver.
func (d *driver) Name() string { return d.name }

// NodeID implements csi.Driver.
func (d *driver) NodeID() string { return d.id }

// Node implements csi.Driver.
func (d *driver) Node() pb.NodeClient { return d.node }

// Has implements csi.Driver.
func (d *driver) Has(c pb.NodeServiceCapability_RPC_Type) bool { return d.has[c] }

func (d *driver) close() { _ = d.conn.Close() }

// check says what is wrong with what a plugin says of itself. Upstream's words stand where upstream has the case.
func check(p plugins.Plugin) error {
	if problems := validation.IsDNS1123Subdomain(p.Name); len(problems) > 0 || len(p.Name) > longestName {
		return fmt.Errorf("the name of the CSI driver is %q: want a DNS name in lower case of at most %d characters, as in disk.example.com", p.Name, longestName)
	}
	if len(p.Versions) == 0 {
		return fmt.Errorf("validation failed for CSI Driver %s at endpoint %s: plugin returned an empty list for supported versions", p.Name, p.Endpoint)
	}
	if _, err := version.HighestSupportedVersion(p.Versions); err != nil {
		return fmt.Errorf("validation failed for CSI Driver %s at endpoint %s: none of the versions specified %q are supported. err=%w", p.Name, p.Endpoint, p.Versions, err)
	}
	return nil
}

// connect makes a driver of a plugin that answers.
func connect(ctx context.Context, p plugins.Plugin, parts Parts) (*driver, error) {
	conn, err := plugins.Connect(p.Endpoint, parts.Wire, grpc.WithIdleTimeout(idleTime), grpc.WithChainUnaryInterceptor(counting(p.Name, parts)),
		grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: connectTime, Backoff: backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 2, Jitter: .2, MaxDelay: 3 * time.Second}}))
	if err != nil {
		return nil, err
	}
	d := &driver{name: p.Name, conn: conn, node: pb.NewNodeClient(conn), has: map[pb.NodeServiceCapability_RPC_Type]bool{}}
	if err := d.learn(ctx); err != nil {
		d.close()
		return nil, err
	}
	return d, nil
}

// learn asks the driver once for all what this node is to it and what it can.
func (d *driver) learn(ctx context.Context) error {
	var err error
	if d.info, err = d.ask(ctx); err != nil {
		return err
	}
	d.id = d.info.nodeID
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	answer, err := d.node.NodeGetCapabilities(ctx, &pb.NodeGetCapabilitiesRequest{})
	if err != nil {
		return fmt.Errorf("NodeGetCapabilities: %w", err)
	}
	for _, c := range answer.GetCapabilities() {
		d.has[c.GetRpc().GetType()] = true
	}
	return nil
}

// ask asks the driver what this node is to it.
func (d *driver) ask(ctx context.Context) (info, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	answer, err := d.node.NodeGetInfo(ctx, &pb.NodeGetInfoRequest{})
	if err != nil {
		return info{}, fmt.Errorf("NodeGetInfo: %w", err)
	}
	return checkInfo(d.name, answer)
}

// checkInfo refuses what the API server would refuse.
func checkInfo(name string, answer *pb.NodeGetInfoResponse) (info, error) {
	out := info{nodeID: answer.GetNodeId(), most: answer.GetMaxVolumesPerNode(), topology: answer.GetAccessibleTopology().GetSegments()}
	switch {
	case out.nodeID == "":
		return out, errors.New("error adding CSI driver node info: driverNodeID must not be empty")
	case len(out.nodeID) > longestNodeID:
		return out, fmt.Errorf("NodeGetInfo: node_id has %d characters: want at most %d", len(out.nodeID), longestNodeID)
	case out.most < 0:
		klog.InfoS("Ignored a negative max_volumes_per_node of a CSI driver", "driver", name, "value", out.most)
		out.most = 0
	}
	out.most = min(out.most, math.MaxInt32)
	for _, key := range out.keys() {
		if problems := validation.IsQualifiedName(key); len(problems) > 0 {
			return out, fmt.Errorf("NodeGetInfo: accessible_topology has the key %q: %s", key, strings.Join(problems, "; "))
		}
		if problems := validation.IsValidLabelValue(out.topology[key]); len(problems) > 0 {
			return out, fmt.Errorf("NodeGetInfo: accessible_topology has %s=%q: %s", key, out.topology[key], strings.Join(problems, "; "))
		}
	}
	return out, nil
}

// counting has each call to a driver counted.
func counting(name string, parts Parts) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, call grpc.UnaryInvoker, options ...grpc.CallOption) error {
		begin := parts.Clock.Now()
		err := call(ctx, method, request, reply, conn, options...)
		parts.Counted(name, method, parts.Clock.Since(begin), err, csi.IsMigrated(ctx))
		return err
	}
}
