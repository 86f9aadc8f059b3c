package csidriver

import "context"

// AskProxy has csi-proxy make a link.
func AskProxy(ctx context.Context, source, target string) error {
	p, err := newProxied()
	if err != nil {
		return err
	}
	return p.publish(ctx, source, target)
}
