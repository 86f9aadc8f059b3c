package main

import (
	"bytes"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	proxy "github.com/winkube/winkube/cmd/kube-proxy/app"
	kubelet "github.com/winkube/winkube/cmd/kubelet/app"
)

// programs returns the commands with all their Linux flags.
func programs() []*cobra.Command { return []*cobra.Command{kubelet.Command(), proxy.Command()} }

// manuals returns the manual pages of a command and its subcommands, below man.
func manuals(command *cobra.Command, version string, when time.Time) ([]file, error) {
	command.DisableAutoGenTag = true
	header := &doc.GenManHeader{Section: "8", Date: &when, Source: "winkube " + version, Manual: "winkube"}
	var page bytes.Buffer
	if err := doc.GenMan(command, header, &page); err != nil {
		return nil, fmt.Errorf("the manual page of %s: %w", command.CommandPath(), err)
	}
	all := []file{{"man/" + strings.ReplaceAll(command.CommandPath(), " ", "-") + ".8", 0o644, page.Bytes()}}
	for _, child := range command.Commands() {
		if !child.IsAvailableCommand() {
			continue
		}
		more, err := manuals(child, version, when)
		if err != nil {
			return nil, err
		}
		all = append(all, more...)
	}
	return all, nil
}

// completions returns the shell completions of a command, below completions.
func completions(command *cobra.Command) ([]file, error) {
	var bash, zsh, fish bytes.Buffer
	if err := command.GenBashCompletionV2(&bash, true); err != nil {
		return nil, err
	}
	if err := command.GenZshCompletion(&zsh); err != nil {
		return nil, err
	}
	if err := command.GenFishCompletion(&fish, true); err != nil {
		return nil, err
	}
	name := command.Name()
	return []file{
		{"completions/bash/" + name, 0o644, bash.Bytes()},
		{"completions/zsh/_" + name, 0o644, zsh.Bytes()},
		{"completions/fish/" + name + ".fish", 0o644, fish.Bytes()},
	}, nil
}

// generated returns the manual pages and completions of both programs.
func generated(version string, when time.Time) (all []file, err error) {
	for _, command := range programs() {
		pages, err := manuals(command, version, when)
		if err != nil {
			return nil, err
		}
		shells, err := completions(command)
		if err != nil {
			return nil, err
		}
		all = append(append(all, pages...), shells...)
	}
	return all, nil
}
