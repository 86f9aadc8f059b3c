package main

import (
	"context"
	"io"
	"maps"

	"github.com/winkube/winkube/test/bench/traffic"
	"github.com/winkube/winkube/test/bench/way"
)

func proxyCommands() map[string]func([]string) error {
	commands := traffic.Commands()
	maps.Copy(commands, way.Commands())
	return commands
}

func networkBench(ctx context.Context, root string, out io.Writer) error {
	return way.Run(ctx, root, out)
}

func proxyBench(ctx context.Context, root string, others []string, out io.Writer, loads []string) error {
	return traffic.Run(ctx, root, others, out, loads)
}
