module github.com/winkube/winkube/hack/tools/csi-proxy

go 1.26.8

require (
	github.com/Microsoft/go-winio v0.6.1
	github.com/kubernetes-csi/csi-proxy v1.1.3
)

require (
	github.com/go-logr/logr v1.2.0 // indirect
	github.com/golang/protobuf v1.5.3 // indirect
	github.com/kubernetes-csi/csi-proxy/client v1.1.3 // indirect
	github.com/pkg/errors v0.9.1 // indirect
	golang.org/x/mod v0.8.0 // indirect
	golang.org/x/net v0.9.0 // indirect
	golang.org/x/sys v0.11.0 // indirect
	golang.org/x/text v0.9.0 // indirect
	golang.org/x/tools v0.6.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20230525234030-28d5490b6b19 // indirect
	google.golang.org/grpc v1.57.0 // indirect
	google.golang.org/protobuf v1.31.0 // indirect
	k8s.io/klog/v2 v2.100.1 // indirect
)

// csi-proxy has these only in its own go.mod, for its generator.
replace k8s.io/gengo => k8s.io/gengo v0.0.0-20240911193312-2b36238f13e9
