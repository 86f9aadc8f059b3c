package main

import (
	"context"
	"io"

	"github.com/winkube/winkube/test/bench/traffic"
)

func proxyCommands() map[string]func([]string) error { return traffic.Commands() }

func proxyBench(ctx context.Context, root string, out io.Writer, loads []string) error {
	return traffic.Run(ctx, root, out, loads)
}
