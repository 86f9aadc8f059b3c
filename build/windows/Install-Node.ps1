<#
.SYNOPSIS
Makes this Windows Server a node of a Kubernetes cluster: fetches the programs, checks their sum and calls kubelet.exe node join, which does the rest.
.EXAMPLE
.\Install-Node.ps1 10.0.0.1:6443 -Token abcdef.0123456789abcdef -CACertHash sha256:...
#>
param(
    [string] $Server = '',
    [string] $Token = '',
    [string] $CACertHash = '',
    [string] $Kubeconfig = '',
    [string] $ProxyKubeconfig = '',
    [string] $Programs = $PSScriptRoot,
    [string] $Archive = '',
    [string] $SHA256 = '',
    [string[]] $JoinFlags = @(),
    [string[]] $KubeletFlags = @(),
    [string[]] $ProxyFlags = @(),
    [switch] $Upgrade,
    [switch] $Rollback
)
$ErrorActionPreference = 'Stop'
if ($Archive -ne '') {
    $Programs = Join-Path $env:TEMP "winkube-$PID"
    [Net.ServicePointManager]::SecurityProtocol = 'Tls12'
    if ($Archive -match '^https://') { Invoke-WebRequest -UseBasicParsing $Archive -OutFile "$Programs.zip" } else { Copy-Item $Archive "$Programs.zip" }
    if ((Get-FileHash "$Programs.zip" -Algorithm SHA256).Hash -ne $SHA256) { throw "-SHA256 $SHA256 is not the sum of -Archive ${Archive}: fetch it again" }
    Expand-Archive "$Programs.zip" $Programs -Force
}
$kubelet, $proxy = (Join-Path $Programs 'kubelet.exe'), (Join-Path $Programs 'proxy.exe')
if ($Upgrade -or $Rollback) {
    $verb = if ($Upgrade) { 'upgrade' } else { 'rollback' }
    & $kubelet 'service' $verb
    if ($LASTEXITCODE -eq 0) { & $proxy 'service' $verb }
    exit $LASTEXITCODE
}
$flags = @('node', 'join') + $JoinFlags
if ($Server -ne '') { $flags += @($Server, "--token=$Token", "--discovery-token-ca-cert-hash=$CACertHash") }
if ($Kubeconfig -ne '') { $flags += @("--kubeconfig=$Kubeconfig", "--proxy-kubeconfig=$ProxyKubeconfig") }
& $kubelet ($flags + '--' + $KubeletFlags + '--' + $ProxyFlags); exit $LASTEXITCODE
