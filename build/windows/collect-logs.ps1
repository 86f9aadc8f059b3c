<#
.SYNOPSIS
Collects what helps to find a fault on this node into one zip file. It contains no secrets: no kubeconfigs and no volumes.
#>
[CmdletBinding()]
param(
    [string] $Target = 'C:\k',
    [string] $Out = (Join-Path (Get-Location) "winkube-$env:COMPUTERNAME.zip")
)
$ErrorActionPreference = 'Continue'
Set-StrictMode -Version 2

$folder = Join-Path $env:TEMP "winkube-logs-$PID"
New-Item -ItemType Directory -Force $folder | Out-Null

function Save-Output([string] $Name, [scriptblock] $Command) {
    try {
        & $Command *>&1 | Out-String -Width 250 | Set-Content (Join-Path $folder "$Name.txt")
    } catch {
        Set-Content (Join-Path $folder "$Name.txt") "$_"
    }
}

$kubelet = Join-Path $Target 'kubelet.exe'
$proxy = Join-Path $Target 'proxy.exe'
Save-Output 'doctor' { & $kubelet network doctor }
Save-Output 'kubelet-service' { & $kubelet service status; & $kubelet '--version=raw' }
Save-Output 'proxy-service' { & $proxy service status; & $proxy '--version=raw' }
Save-Output 'proxy-table' { (Invoke-WebRequest -UseBasicParsing 'http://127.0.0.1:10249/debug/table').Content }
Save-Output 'events' { Get-EventLog Application -Source 'kubelet', 'kube-proxy' -Newest 200 | Format-Table -AutoSize -Wrap }
Save-Output 'docker-info' { docker info }
Save-Output 'docker-containers' { docker ps --all --no-trunc }
Save-Output 'docker-networks' { docker network ls }
Save-Output 'adapters' { Get-NetAdapter | Format-List; Get-NetIPAddress | Format-Table }
Save-Output 'routes' { route.exe print }
Save-Output 'portproxy' { netsh.exe interface portproxy show all }
Save-Output 'excluded-ports' { netsh.exe interface ipv4 show excludedportrange protocol=tcp }
Save-Output 'hns' { Get-HnsNetwork; Get-HnsEndpoint }
foreach ($name in 'kubelet', 'kube-proxy') {
    Copy-Item "C:\var\log\$name\*.log*" $folder -ErrorAction SilentlyContinue
}
Compress-Archive -Force -Path (Join-Path $folder '*') -DestinationPath $Out
Remove-Item $folder -Recurse -Force
Write-Host "wrote $Out"
