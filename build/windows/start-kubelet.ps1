<#
.SYNOPSIS
Runs the kubelet in this window, with the arguments of the script of Kubernetes 1.9. Install-Node.ps1 installs it as a service instead.

.DESCRIPTION
That script made an HNS network, an endpoint of the host and a CNI configuration; kubelet.exe does that itself.
#>
[CmdletBinding()]
param(
    [string] $ClusterCIDR = '10.244.0.0/16',
    [string] $KubeDnsServiceIP = '10.96.0.10',
    [string] $KubeletKubeconfig = 'C:\k\config',
    [string] $NodeIP = '',
    [string[]] $Flags = @()
)
$ErrorActionPreference = 'Stop'
Set-StrictMode -Version 2

$arguments = @("--kubeconfig=$KubeletKubeconfig", "--cluster-cidr=$ClusterCIDR", "--cluster-dns=$KubeDnsServiceIP", '--cluster-domain=cluster.local')
if ($NodeIP -ne '') {
    $arguments += "--node-ip=$NodeIP"
}
& (Join-Path $PSScriptRoot 'kubelet.exe') @arguments @Flags
exit $LASTEXITCODE
