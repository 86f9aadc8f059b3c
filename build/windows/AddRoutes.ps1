<#
.SYNOPSIS
Adds the routes to the other nodes' pods, as the script of Kubernetes 1.9 did.

.DESCRIPTION
proxy.exe maintains these routes itself (--network-mode=host-gateway), and removes those of nodes that have gone, which this script does not.
Only a host without proxy.exe needs the script. The kubeconfig must be allowed to list Nodes. -WhatIf only prints the commands.
#>
[CmdletBinding(SupportsShouldProcess = $true)]
param(
    [Parameter(Mandatory = $true)] [string] $Kubeconfig,
    [Parameter(Mandatory = $true)] [string] $Node
)
$ErrorActionPreference = 'Stop'
Set-StrictMode -Version 2

$arguments = @('network', 'routes', "--kubeconfig=$Kubeconfig", "--node=$Node", '--form=route-add')
$lines = & (Join-Path $PSScriptRoot 'kubelet.exe') @arguments
if ($LASTEXITCODE -ne 0) {
    throw "kubelet.exe network routes ended with code $LASTEXITCODE"
}
foreach ($line in $lines) {
    if ($line -notmatch '^route ') {
        continue
    }
    if ($PSCmdlet.ShouldProcess($env:COMPUTERNAME, $line)) {
        & cmd.exe /c $line
    }
}
